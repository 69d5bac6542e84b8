//! A worker process: carries out orders until there are no more. When its parent has ended, or on Ctrl-C, it ends
//! between two operations.

use std::io;
use std::sync::mpsc::sync_channel;
use std::thread;

use guira_lab::driver::Driver;

use super::share::Order;
use crate::commands::Verdict;
use crate::failure::Failure;
use crate::interrupt;
use crate::workers::{next_order, reply};

/// Maximum number of queued orders: the parent waits for an answer to each.
const WAITING_ORDERS: usize = 1;

/// Carries out the command.
pub fn run() -> Result<Verdict, Failure> {
    interrupt::catch();
    let (sender, orders) = sync_channel(WAITING_ORDERS);
    // A separate thread, so that the end of the orders is noticed during a phase.
    let read = move || {
        let mut input = io::stdin().lock();
        loop {
            let order = next_order(&mut input).transpose();
            let is_order = matches!(order, Some(Ok(_)));
            if !is_order {
                interrupt::request_stop();
            }
            if matches!(order, Some(Ok(Order::Stop))) {
                interrupt::request_stop();
                continue;
            }
            let Some(order) = order else { return };
            if sender.send(order).is_err() || !is_order {
                return;
            }
        }
    };
    thread::Builder::new().spawn(read).map_err(Failure::thread("start a thread"))?;
    let mut driver: Option<Driver> = None;
    // Bounded by the orders of the parent.
    for order in orders {
        match (&order?, &mut driver) {
            (Order::Prepare(share), None) => match share.driver() {
                Ok(made) => {
                    driver = Some(made);
                    reply(Ok(()))?;
                }
                Err(failure) => reply::<()>(Err(failure))?,
            },
            (Order::Remove, Some(driver)) => reply(Ok(driver.remove_with_progress(&|_| ())))?,
            (order, Some(driver)) => reply(order.carry_out(driver, &|_| ()))?,
            (_, None) => reply::<()>(Err(Failure::Misuse("this process was not prepared".to_owned())))?,
        }
    }
    Ok(Verdict::Fine)
}
