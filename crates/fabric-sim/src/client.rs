//! The state of a simulated client: its progress and its pending faults.

use crate::fault::{Fault, FaultPlan};
use crate::sim::ClientId;

/// The state of a client.
#[derive(Debug)]
pub(crate) struct ClientState {
    /// The number of verbs executed.
    pub(crate) verbs: u64,
    /// The number of verbs after which the next fault is due.
    pub(crate) fault_after: u64,
    /// The pending faults, the last one first.
    faults: Vec<(u64, Fault)>,
    /// The end of its stall.
    pub(crate) stalled_until_ns: u64,
    pub(crate) is_dead: bool,
    /// Its lanes, and the detached lanes that carry the rest of its batches.
    pub(crate) lanes: Vec<u32>,
}

impl ClientState {
    /// Creates the state of `client` with its faults in `plan`.
    pub(crate) fn new(client: ClientId, plan: &FaultPlan) -> ClientState {
        let own = plan.clients.iter().filter(|fault| fault.client == client);
        let mut faults: Vec<_> = own.map(|fault| (fault.after_verbs, fault.fault.clone())).collect();
        faults.sort_by_key(|(after, _)| *after);
        faults.reverse();
        let (stalled_until_ns, lanes) = (0, Vec::new());
        let mut state = ClientState { verbs: 0, fault_after: 0, faults, stalled_until_ns, is_dead: false, lanes };
        state.arm();
        state
    }

    /// Adds `fault`, due after `verbs` more verbs, before all other faults that are due then.
    pub(crate) fn add_fault(&mut self, verbs: u64, fault: Fault) {
        let after = self.verbs.saturating_add(verbs);
        let index = self.faults.partition_point(|(other, _)| *other >= after);
        self.faults.insert(index, (after, fault));
        self.arm();
    }

    /// Takes a fault that is due before the next verb.
    pub(crate) fn take_fault(&mut self) -> Option<Fault> {
        let is_due = self.faults.last().is_some_and(|(after, _)| *after <= self.verbs);
        let fault = if is_due { self.faults.pop() } else { None };
        self.arm();
        fault.map(|(_, fault)| fault)
    }

    fn arm(&mut self) {
        self.fault_after = self.faults.last().map_or(u64::MAX, |(after, _)| *after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::ClientFault;

    #[test]
    fn faults_come_in_order_and_once() {
        let fault = |client, after_verbs, for_ns| ClientFault {
            client: ClientId(client),
            after_verbs,
            fault: Fault::Stall { for_ns },
        };
        let clients = vec![fault(1, 5, 1), fault(0, 0, 2), fault(1, 2, 3), fault(1, 5, 4)];
        let mut state = ClientState::new(ClientId(1), &FaultPlan { clients, ..FaultPlan::default() });
        assert_eq!((state.fault_after, state.take_fault()), (2, None));
        let mut came = Vec::new();
        for verbs in 0..8 {
            state.verbs = verbs;
            while state.fault_after <= verbs {
                let Some(Fault::Stall { for_ns }) = state.take_fault() else { panic!("a stall is due") };
                came.push((verbs, for_ns));
            }
        }
        assert_eq!(came, [(2, 3), (5, 1), (5, 4)]);
        assert_eq!(state.take_fault(), None);
        state.add_fault(0, Fault::Die { units: 1 });
        assert_eq!((state.fault_after, state.take_fault()), (7, Some(Fault::Die { units: 1 })));
        // A later fault is added before an earlier one. Of two at the same time, the one added last comes first.
        for (verbs, for_ns) in [(3, 5), (1, 6), (3, 7)] {
            state.add_fault(verbs, Fault::Stall { for_ns });
        }
        let mut came = Vec::new();
        for verbs in 7..=10 {
            state.verbs = verbs;
            while let Some(Fault::Stall { for_ns }) = state.take_fault() {
                came.push((verbs, for_ns));
            }
        }
        assert_eq!(came, [(8, 6), (10, 7), (10, 5)]);
    }
}
