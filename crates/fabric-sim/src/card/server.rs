//! A resource that serves one request after the other, in the order in which they enter.

/// A server with a queue. Times are picoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Server {
    free_ps: u64,
    busy_ps: u64,
}

impl Server {
    /// Adds a request at `now_ps` that takes `takes_ps`. Returns the time at which it begins.
    #[inline(always)]
    pub(crate) fn enter(&mut self, now_ps: u64, takes_ps: u64) -> u64 {
        let begins_ps = self.free_ps.max(now_ps);
        self.free_ps = begins_ps + takes_ps;
        self.busy_ps += takes_ps;
        begins_ps
    }

    /// Adds a request like [`Server::enter`]. Returns the time for which it waits.
    #[inline(always)]
    pub(crate) fn wait(&mut self, now_ps: u64, takes_ps: u64) -> u64 {
        self.enter(now_ps, takes_ps) - now_ps
    }

    /// Returns the time for which the server has been or will be busy, for all requests so far.
    pub(crate) fn busy_ps(&self) -> u64 {
        self.busy_ps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_served_one_after_the_other() {
        let mut server = Server::default();
        assert_eq!(server.enter(100, 30), 100);
        assert_eq!(server.enter(110, 30), 130);
        assert_eq!(server.wait(120, 5), 40);
        assert_eq!(server.enter(500, 1), 500);
        assert_eq!(server.busy_ps(), 66);
    }
}
