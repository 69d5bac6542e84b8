//! One of the further processes: carries out orders until there are no more.

use std::io;

use guira_lab::driver::Driver;

use super::share::Order;
use crate::commands::Verdict;
use crate::failure::Failure;
use crate::workers::{next_order, reply};

/// Carries out the command.
pub fn run() -> Result<Verdict, Failure> {
    let mut input = io::stdin().lock();
    let mut driver: Option<Driver> = None;
    // Bounded by the orders of whoever started this process.
    while let Some(order) = next_order(&mut input)? {
        match (&order, &mut driver) {
            (Order::Prepare(share), None) => match share.driver() {
                Ok(made) => {
                    driver = Some(made);
                    reply(Ok(()))?;
                }
                Err(failure) => reply::<()>(Err(failure))?,
            },
            (_, Some(driver)) => reply(order.carry_out(driver))?,
            (_, None) => reply::<()>(Err(Failure::Misuse("this process was not prepared".to_owned())))?,
        }
    }
    Ok(Verdict::Fine)
}
