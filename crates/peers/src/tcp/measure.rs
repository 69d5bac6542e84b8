//! One measurement: warmed-up connections carry out their shares concurrently, and the cost for both sides is taken.

use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, Builder};

use guira_lab::driver::StartLine;
use serde::Serialize;

use super::plan::Series;
use super::redis_benchmark;
use super::servers::{TcpEndpoint, TcpServer};
use super::sessions::{self, Session, Share};
use super::usage::Usage;
use crate::draws::Draws;
use crate::error::PeersError;
use crate::machine::{cores, pin_thread};
use crate::measure::monotonic_ns;

/// Warm-up exchanges of each connection.
const WARM_UP_EXCHANGES: usize = 8;

/// The processors of the server and of the clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cores {
    /// The processor of the measured server.
    pub server: usize,
    /// The processors of the clients; the server's if the machine has no other.
    pub clients: Vec<usize>,
    /// All processors that this process may use.
    #[serde(skip)]
    all: Vec<usize>,
}

impl Cores {
    /// Assigns the last processor to the server and all others to the clients.
    pub(super) fn choose() -> Result<Cores, PeersError> {
        let all = cores()?;
        let Some((server, clients)) = all.split_last() else {
            return Err(PeersError::Options("this process may use no processor".to_owned()));
        };
        let clients = if clients.is_empty() { vec![*server] } else { clients.to_vec() };
        Ok(Cores { server: *server, clients, all })
    }

    /// Runs `work` with this thread, and the threads that it starts, on the clients' processors.
    fn as_client<T>(&self, work: impl FnOnce() -> Result<T, PeersError>) -> Result<T, PeersError> {
        pin_thread(None, &self.clients)?;
        let done = work();
        pin_thread(None, &self.all)?;
        done
    }
}

/// The figures of one round of a series.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured {
    /// Operations per second of elapsed time.
    pub(super) per_second: f64,
    /// Resources that the operations took in the server.
    pub(super) server: Usage,
    /// Nanoseconds of processor time of the clients, if those were ours.
    pub(super) client_ns: Option<u64>,
    /// Nanoseconds of an exchange: the median.
    pub(super) p50_ns: f64,
    /// Nanoseconds of an exchange: the 99th percentile.
    pub(super) p99_ns: f64,
    /// Round trips, if the clients were ours.
    pub(super) round_trips: Option<u64>,
}

/// Measures a series with clients of ours.
///
/// # Errors
/// Errors of the compared system, and every wrong answer.
pub(super) fn with_own_clients(
    series: &Series,
    serving: &TcpServer,
    cores: &Cores,
    draws: &Arc<Draws>,
) -> Result<Measured, PeersError> {
    cores.as_client(|| {
        let point = series.point;
        let mut open = Vec::with_capacity(point.connections);
        for _ in 0..point.connections {
            open.push(sessions::open(series, serving.endpoint())?);
        }
        let share = |range: Range<usize>| Share { mix: point.mix, draws: Arc::clone(draws), range };
        let each = series.operations / point.connections;
        let warm_up = share(0..(WARM_UP_EXCHANGES * point.depth).min(each));
        open.iter_mut().try_for_each(|session| session.run(&warm_up, &mut Vec::new()))?;
        let whole = share(0..series.operations);
        let shares: Vec<Share> = (0..open.len()).map(|index| whole.part(index, point.connections)).collect();
        at_once(series, serving, &mut open, &shares)
    })
}

/// Carries out all shares concurrently, each on a thread of its own.
fn at_once(
    series: &Series,
    serving: &TcpServer,
    open: &mut [Box<dyn Session>],
    shares: &[Share],
) -> Result<Measured, PeersError> {
    let round_trips = |open: &[Box<dyn Session>]| open.iter().map(|session| session.round_trips()).sum::<u64>();
    let trips_before = round_trips(open);
    let start = &StartLine::new(open.len() + 1);
    let (result, start_ns, used) = thread::scope(|scope| {
        let mut running = Vec::new();
        for (session, share) in open.iter_mut().zip(shares) {
            let run = move || {
                let mut exchanges_ns = Vec::with_capacity(share.range.len());
                let result = if start.wait() { session.run(share, &mut exchanges_ns) } else { Ok(()) };
                (result.map(|()| exchanges_ns), monotonic_ns())
            };
            match Builder::new().spawn_scoped(scope, run) {
                Ok(thread) => running.push(thread),
                Err(error) => {
                    start.cancel();
                    return Err(PeersError::host("start a thread")(error));
                }
            }
        }
        let before = Usage::of(serving.pid()).map(|server| (server, own_cpu_ns()));
        let start_ns = monotonic_ns();
        let _ = start.wait();
        let ended: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
        let client_ns = own_cpu_ns();
        let used = before.and_then(|(server, client)| {
            Ok((Usage::of(serving.pid())?.since(&server), client_ns.saturating_sub(client)))
        });
        Ok((ended, start_ns, used))
    })?;
    let (mut exchanges_ns, mut end_ns) = (Vec::with_capacity(series.operations), start_ns + 1);
    for ended in result {
        let (result, ended_ns) = ended.map_err(|_| PeersError::peer("run a connection", "the thread panicked"))?;
        exchanges_ns.extend(result?);
        end_ns = end_ns.max(ended_ns);
    }
    let (server, client_ns) = used?;
    exchanges_ns.sort_unstable();
    Ok(Measured {
        per_second: series.operations as f64 * 1e9 / (end_ns - start_ns) as f64,
        server,
        client_ns: Some(client_ns),
        p50_ns: quantile(&exchanges_ns, 0.5),
        p99_ns: quantile(&exchanges_ns, 0.99),
        round_trips: Some(round_trips(open) - trips_before),
    })
}

/// Measures a series with redis-benchmark, whose connecting counts, too.
///
/// # Errors
/// Errors of the client.
pub(super) fn with_redis_benchmark(
    series: &Series,
    serving: &TcpServer,
    cores: &Cores,
    records: u64,
) -> Result<Measured, PeersError> {
    let TcpEndpoint::Peer(address) = serving.endpoint() else {
        return Err(PeersError::Options("redis-benchmark cannot measure this server".to_owned()));
    };
    cores.as_client(|| {
        let before = Usage::of(serving.pid())?;
        let figures = redis_benchmark::run(address, series, records)?;
        let server = Usage::of(serving.pid())?.since(&before);
        let redis_benchmark::Figures { per_second, p50_ns, p99_ns } = figures;
        Ok(Measured { per_second, server, client_ns: None, p50_ns, p99_ns, round_trips: None })
    })
}

/// Nanoseconds of processor time of this process.
fn own_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    // Neither number is negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The quantile `share` of `sorted`, or 0 if it is empty.
fn quantile(sorted: &[u32], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).map_or(0.0, |ns| f64::from(*ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_measured_values() {
        let sorted: Vec<u32> = (0..100).collect();
        assert_eq!((quantile(&sorted, 0.5), quantile(&sorted, 0.99), quantile(&sorted, 1.0)), (50.0, 99.0, 99.0));
        assert_eq!((quantile(&[], 0.5), quantile(&[7], 0.99)), (0.0, 7.0));
    }

    #[test]
    fn the_server_has_a_core_that_no_client_has() {
        let cores = Cores::choose().unwrap();
        assert_eq!(cores.clients.contains(&cores.server), cores.all.len() == 1);
        let all = crate::machine::cores().unwrap();
        assert_eq!(cores.as_client(crate::machine::cores).unwrap(), cores.clients);
        assert_eq!(crate::machine::cores().unwrap(), all);
    }
}
