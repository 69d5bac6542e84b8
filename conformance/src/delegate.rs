//! A macro with which a test lane forwards methods to the lane it wraps.

/// Implements methods of a [`Lane`](guira_fabric::Lane) by calling the wrapped lane; takes the field that holds it and
/// the methods' names.
///
/// The macro is invoked in an `impl Lane`, beside the methods that do something else. A method that is in neither place
/// does not compile, except `prefetch`, which then does nothing.
///
/// ```
/// use guira_fabric::heap::HeapLane;
/// use guira_fabric::{Lane, Submitted, Verb};
///
/// /// A lane that counts the batches it was handed.
/// struct CountingLane {
///     lane: HeapLane,
///     batches: u64,
/// }
///
/// impl Lane for CountingLane {
///     guira_conformance::delegate!(lane: caps, traffic, traffic_mut, poll, forget, poll_drain, poll_pause, now_ns);
///
///     fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted {
///         self.batches += 1;
///         self.lane.submit(batch)
///     }
/// }
/// ```
#[macro_export]
macro_rules! delegate {
    ($lane:tt: $($method:ident),+) => {
        $($crate::delegate!(@ $method $lane);)+
    };
    (@ caps $lane:tt) => {
        fn caps(&self) -> &::guira_fabric::Caps {
            self.$lane.caps()
        }
    };
    (@ traffic $lane:tt) => {
        fn traffic(&self) -> &::guira_fabric::Traffic {
            self.$lane.traffic()
        }
    };
    (@ traffic_mut $lane:tt) => {
        fn traffic_mut(&mut self) -> &mut ::guira_fabric::Traffic {
            self.$lane.traffic_mut()
        }
    };
    (@ submit $lane:tt) => {
        fn submit(&mut self, batch: &mut [::guira_fabric::Verb<'_>]) -> ::guira_fabric::Submitted {
            self.$lane.submit(batch)
        }
    };
    (@ poll $lane:tt) => {
        fn poll(
            &mut self,
            batch: &mut [::guira_fabric::Verb<'_>],
            cx: &mut ::std::task::Context<'_>,
        ) -> ::std::task::Poll<Result<(), ::guira_fabric::FabricError>> {
            self.$lane.poll(batch, cx)
        }
    };
    (@ forget $lane:tt) => {
        fn forget(&mut self) {
            self.$lane.forget();
        }
    };
    (@ poll_drain $lane:tt) => {
        fn poll_drain(
            &mut self,
            found: &mut [u64],
            cx: &mut ::std::task::Context<'_>,
        ) -> ::std::task::Poll<Result<usize, ::guira_fabric::FabricError>> {
            self.$lane.poll_drain(found, cx)
        }
    };
    (@ prefetch $lane:tt) => {
        fn prefetch(&self, addr: ::guira_fabric::Addr, words: usize) {
            self.$lane.prefetch(addr, words);
        }
    };
    (@ poll_pause $lane:tt) => {
        fn poll_pause(&mut self, until_ns: u64, cx: &mut ::std::task::Context<'_>) -> ::std::task::Poll<()> {
            self.$lane.poll_pause(until_ns, cx)
        }
    };
    (@ now_ns $lane:tt) => {
        fn now_ns(&mut self) -> u64 {
            self.$lane.now_ns()
        }
    };
}
