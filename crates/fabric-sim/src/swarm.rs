//! Random fault plans. Each run has a random subset of the hazards that a test allows (swarm testing), so that some
//! runs have many faults of one kind and none of another. No run would be like that if each had a mixture of all
//! hazards.

use guira_fabric::{Addr, Caps};

use crate::draws::Draws;
use crate::fault::{ClientFault, Fault, FaultPlan, Lost, NodeEvent, NodeFault};
use crate::sim::ClientId;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hazard {
    /// Death of clients: [`Fault::Die`].
    Death,
    /// Stalls of clients: [`Fault::Stall`].
    Stall,
    /// Delays of the rest of a batch: [`Fault::DelayTail`].
    Delay,
    /// Loss of connections: [`Fault::LoseConnection`]; never where verbs execute in place.
    Disconnection,
    /// Restart of the memory node: [`NodeEvent::Restart`]; never where verbs execute in place.
    Restart,
    /// Flips of single bits in [`Swarm::flips`]: [`NodeEvent::Flip`].
    Flip,
    /// Split verbs: [`crate::Relaxations::split_percent`].
    Split,
    /// Reordered READs: [`crate::Relaxations::swap_percent`].
    Swap,
    /// WRITEs that overtake READs and atomics: [`crate::Relaxations::overtake_percent`].
    Overtake,
    /// READs that sample again: [`crate::Relaxations::resample_percent`].
    Resample,
    /// Words of READs and WRITEs in any order: [`crate::Relaxations::scatter_percent`].
    Scatter,
    /// Stalls of the service: [`NodeEvent::StallService`].
    ServiceStall,
    /// Resets of the element: [`NodeEvent::ResetElement`]; never where verbs execute in place.
    ElementReset,
}

impl Hazard {
    /// All hazards.
    pub const ALL: [Hazard; 13] = [
        Hazard::Death,
        Hazard::Stall,
        Hazard::Delay,
        Hazard::Disconnection,
        Hazard::Restart,
        Hazard::Flip,
        Hazard::Split,
        Hazard::Swap,
        Hazard::Overtake,
        Hazard::Resample,
        Hazard::Scatter,
        Hazard::ServiceStall,
        Hazard::ElementReset,
    ];
    /// The hazards that only cost time.
    pub const HARMLESS: [Hazard; 7] = [
        Hazard::Stall,
        Hazard::Delay,
        Hazard::Split,
        Hazard::Swap,
        Hazard::Overtake,
        Hazard::Resample,
        Hazard::Scatter,
    ];
    /// The liberties of a queue pair: whatever [`guira_fabric::PairOrder`] and a WRITE of several packets leave open;
    /// never where [`Caps::ordered_read_sampling`] is true.
    pub const QUEUE_PAIR: [Hazard; 3] = [Hazard::Overtake, Hazard::Resample, Hazard::Scatter];
}

/// The parameters from which random plans are drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swarm {
    /// The capabilities of the fabric.
    pub caps: Caps,
    /// The number of clients of the run.
    pub clients: u32,
    /// The first of the clients that are spawned during the run; all clients after it are, too. Half of their faults
    /// come within their first [`EARLY_VERBS`] verbs, in which a client that takes the slot of a dead one recovers it.
    pub newcomers_from: u32,
    /// The approximate number of verbs that each client posts.
    pub verbs_each: u64,
    /// The approximate duration of the run in nanoseconds of virtual time.
    pub span_ns: u64,
    /// The average number of clients per fault, for each kind of fault that a run has.
    pub clients_per_fault: u64,
    /// The hazards that are allowed.
    pub hazards: Vec<Hazard>,
    /// The ranges in which bits may flip: the first word, and the number of words.
    pub flips: Vec<(Addr, u64)>,
}

/// Bound of the number of atomic units of a WRITE that are executed before its client dies. It exceeds the 16 words of
/// the largest row in simulations.
const DEATH_UNITS: u64 = 20;
/// More than the number of verbs by which a new client takes a slot and recovers its last client.
pub const EARLY_VERBS: u64 = 48;
/// The maximum number of bits that flip in a run with bit flips.
const MOST_FLIPS: u64 = 4;
/// The maximum number of stalls of the service in a run with some.
const MOST_SERVICE_STALLS: u64 = 3;
/// The maximum number of resets of the element in a run with some.
const MOST_ELEMENT_RESETS: u64 = 20;

impl Swarm {
    /// Draws the plan of `seed`. Equal seeds give equal plans.
    pub fn draw(&self, seed: u64) -> FaultPlan {
        // A different stream than that of the run itself.
        let mut draws = Draws::new(seed ^ 0x5377_6172_6d73_2121);
        let mut plan = FaultPlan::default();
        for hazard in self.hazards.iter().filter(|hazard| self.is_possible(**hazard)) {
            // Half of the runs do not have the hazard.
            if draws.below(2) == 0 {
                continue;
            }
            match hazard {
                Hazard::Death | Hazard::Stall | Hazard::Delay | Hazard::Disconnection => {
                    self.draw_faults(*hazard, &mut draws, &mut plan.clients);
                }
                Hazard::Restart => {
                    let at_ns = draws.below(self.span_ns);
                    plan.node.push(NodeFault { at_ns, fault: NodeEvent::Restart });
                }
                Hazard::Flip => self.draw_flips(&mut draws, &mut plan.node),
                Hazard::Split => plan.relaxations.split_percent = percent(&mut draws),
                Hazard::Swap => plan.relaxations.swap_percent = percent(&mut draws),
                Hazard::Overtake => plan.relaxations.overtake_percent = percent(&mut draws),
                Hazard::Resample => plan.relaxations.resample_percent = percent(&mut draws),
                Hazard::Scatter => plan.relaxations.scatter_percent = percent(&mut draws),
                Hazard::ServiceStall => {
                    for _ in 0..=draws.below(MOST_SERVICE_STALLS - 1) {
                        let (at_ns, for_ns) = (draws.below(self.span_ns), self.draw_time(&mut draws));
                        plan.node.push(NodeFault { at_ns, fault: NodeEvent::StallService { for_ns } });
                    }
                }
                Hazard::ElementReset => {
                    for _ in 0..=draws.below(MOST_ELEMENT_RESETS - 1) {
                        let at_ns = draws.below(self.span_ns);
                        plan.node.push(NodeFault { at_ns, fault: NodeEvent::ResetElement });
                    }
                }
            }
        }
        plan
    }

    fn is_possible(&self, hazard: Hazard) -> bool {
        match hazard {
            Hazard::Disconnection | Hazard::Restart | Hazard::ElementReset => !self.caps.local,
            Hazard::Flip => !self.flips.is_empty(),
            Hazard::Swap | Hazard::Overtake | Hazard::Resample | Hazard::Scatter => !self.caps.ordered_read_sampling,
            Hazard::Death | Hazard::Stall | Hazard::Delay | Hazard::Split | Hazard::ServiceStall => true,
        }
    }

    /// Draws a time that is more often short than long.
    fn draw_time(&self, draws: &mut Draws) -> u64 {
        1 << draws.below(u64::from(self.span_ns.max(2).ilog2()))
    }

    fn draw_faults(&self, hazard: Hazard, draws: &mut Draws, faults: &mut Vec<ClientFault>) {
        // At least one client has the fault, and each client at most once: later faults of a dead client, or of one
        // that lost its connection, would have no effect.
        let unlucky = draws.below(u64::from(self.clients));
        for client in 0..self.clients {
            if u64::from(client) != unlucky && draws.below(self.clients_per_fault) > 0 {
                continue;
            }
            let is_early = client >= self.newcomers_from && draws.below(2) == 0;
            let after_verbs = draws.below(if is_early { EARLY_VERBS } else { self.verbs_each });
            let time_ns = self.draw_time(draws);
            let fault = match hazard {
                Hazard::Stall => Fault::Stall { for_ns: time_ns },
                Hazard::Delay => Fault::DelayTail { by_ns: time_ns },
                Hazard::Disconnection => Fault::LoseConnection(match draws.below(3) {
                    0 => Lost::Request,
                    1 => Lost::Reply,
                    _ => Lost::Late { by_ns: time_ns },
                }),
                _ => Fault::Die { units: draws.below(DEATH_UNITS) },
            };
            faults.push(ClientFault { client: ClientId(client), after_verbs, fault });
        }
    }

    fn draw_flips(&self, draws: &mut Draws, node: &mut Vec<NodeFault>) {
        for _ in 0..=draws.below(MOST_FLIPS) {
            let (first, words) = self.flips[draws.below(self.flips.len() as u64) as usize];
            let addr = first.add_words(draws.below(words));
            let fault = NodeEvent::Flip { addr, bits: 1 << draws.below(64) };
            node.push(NodeFault { at_ns: draws.below(self.span_ns), fault });
        }
    }
}

/// Draws a percentage: rarely, often or always.
fn percent(draws: &mut Draws) -> u8 {
    [2, 30, 100][draws.below(3) as usize]
}

#[cfg(test)]
mod tests {
    use guira_fabric::Profile;

    use super::*;

    fn swarm(profile: Profile) -> Swarm {
        Swarm {
            caps: profile.caps(),
            clients: 8,
            newcomers_from: 6,
            verbs_each: 100,
            span_ns: 1_000_000,
            clients_per_fault: 4,
            hazards: Hazard::ALL.to_vec(),
            flips: vec![(Addr::main(64), 8), (Addr::device(0), 1)],
        }
    }

    fn has(plan: &FaultPlan, hazard: Hazard) -> bool {
        let client = |is: fn(&Fault) -> bool| plan.clients.iter().any(|fault| is(&fault.fault));
        match hazard {
            Hazard::Death => client(|fault| matches!(fault, Fault::Die { .. })),
            Hazard::Stall => client(|fault| matches!(fault, Fault::Stall { .. })),
            Hazard::Delay => client(|fault| matches!(fault, Fault::DelayTail { .. })),
            Hazard::Disconnection => client(|fault| matches!(fault, Fault::LoseConnection(_))),
            Hazard::Restart => plan.node.iter().any(|fault| fault.fault == NodeEvent::Restart),
            Hazard::Flip => plan.node.iter().any(|fault| matches!(fault.fault, NodeEvent::Flip { .. })),
            Hazard::Split => plan.relaxations.split_percent > 0,
            Hazard::Swap => plan.relaxations.swap_percent > 0,
            Hazard::Overtake => plan.relaxations.overtake_percent > 0,
            Hazard::Resample => plan.relaxations.resample_percent > 0,
            Hazard::Scatter => plan.relaxations.scatter_percent > 0,
            Hazard::ServiceStall => plan.node.iter().any(|fault| matches!(fault.fault, NodeEvent::StallService { .. })),
            Hazard::ElementReset => plan.node.iter().any(|fault| fault.fault == NodeEvent::ResetElement),
        }
    }

    /// Each possible hazard is in some plans and not in others, and for each other hazard, it is in some plans without
    /// that one.
    #[test]
    fn each_hazard_is_drawn_in_some_plans_only() {
        for profile in Profile::ALL {
            let swarm = swarm(profile);
            let plans: Vec<FaultPlan> = (0..200).map(|seed| swarm.draw(seed)).collect();
            for hazard in Hazard::ALL {
                let with = plans.iter().filter(|plan| has(plan, hazard)).count();
                let expected = if swarm.is_possible(hazard) { 60..140 } else { 0..1 };
                assert!(expected.contains(&with), "{profile}: {hazard:?} in {with} of 200 plans");
                for other in Hazard::ALL.into_iter().filter(|other| *other != hazard) {
                    let alone = plans.iter().any(|plan| has(plan, hazard) && !has(plan, other));
                    assert_eq!(alone, swarm.is_possible(hazard), "{profile}: {hazard:?} without {other:?}");
                }
            }
        }
    }

    #[test]
    fn equal_seeds_draw_equal_plans_within_their_bounds() {
        let swarm = swarm(Profile::Mlx5);
        for seed in 0..200 {
            let plan = swarm.draw(seed);
            assert_eq!(plan, swarm.draw(seed));
            assert!(plan.clients.iter().all(|fault| fault.client.0 < 8 && fault.after_verbs < 100));
            for fault in &plan.node {
                assert!(fault.at_ns < 1_000_000);
                if let NodeEvent::Flip { addr, bits } = fault.fault {
                    let row = addr.space() == guira_fabric::Space::Main && (64..128).contains(&addr.offset());
                    assert!((row || addr == Addr::device(0)) && bits.is_power_of_two(), "{fault:?}");
                }
            }
        }
        assert_ne!(swarm.draw(1), swarm.draw(2));
        assert_eq!(Swarm { hazards: Vec::new(), ..swarm }.draw(1), FaultPlan::default());
    }
}
