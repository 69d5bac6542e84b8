//! What the world knows of a client: how far it has come, and what will befall it.

use crate::fault::{Fault, FaultPlan};
use crate::sim::ClientId;

/// A client.
#[derive(Debug)]
pub(crate) struct ClientState {
    /// Verbs carried out.
    pub(crate) verbs: u64,
    /// After how many verbs the next fault comes.
    pub(crate) fault_after: u64,
    /// What is to come, the last first.
    faults: Vec<(u64, Fault)>,
    /// Until when it learns nothing.
    pub(crate) stalled_until_ns: u64,
    pub(crate) is_dead: bool,
    /// Its lanes, and those of nobody that carry the rest of a batch of its own.
    pub(crate) lanes: Vec<u32>,
}

impl ClientState {
    /// The client `client` under `plan`.
    pub(crate) fn new(client: ClientId, plan: &FaultPlan) -> ClientState {
        let own = plan.clients.iter().filter(|fault| fault.client == client);
        let mut faults: Vec<_> = own.map(|fault| (fault.after_verbs, fault.fault)).collect();
        faults.sort_by_key(|(after, _)| *after);
        faults.reverse();
        let (stalled_until_ns, lanes) = (0, Vec::new());
        let mut state = ClientState { verbs: 0, fault_after: 0, faults, stalled_until_ns, is_dead: false, lanes };
        state.arm();
        state
    }

    /// Lets `fault` come when it has carried out `verbs` more verbs, before all others that come then.
    pub(crate) fn add_fault(&mut self, verbs: u64, fault: Fault) {
        let after = self.verbs.saturating_add(verbs);
        let place = self.faults.partition_point(|(other, _)| *other >= after);
        self.faults.insert(place, (after, fault));
        self.arm();
    }

    /// The fault that comes before the next verb, once.
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
        // The later first, and two at the same time: the last one that was told comes first.
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
