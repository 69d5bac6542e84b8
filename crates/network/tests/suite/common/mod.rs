//! Tools of several modules of the suite: a client that knows only the wire protocol, nodes over each region, a proxy that
//! cuts and delays, and the work of lanes that share a connection.

pub mod client;
pub mod proxy;
pub mod test_node;

use guira_fabric::{Addr, FabricError, Verb, Waiting, post};
use guira_network::tcp::TcpLane;

/// Both ways of waiting.
pub const WAITING_MODES: [Waiting; 2] = [Waiting::InPlace, Waiting::Cooperative];

/// Draws numbers from a counter at the node, and writes and reads the words of each round at `addr`. Returns the sum of
/// the numbers.
pub async fn draw_numbers(
    mut lane: TcpLane,
    rounds: u64,
    addr: Addr,
    words_of: impl Fn(u64) -> Vec<u64>,
) -> Result<u64, FabricError> {
    let mut sum = 0;
    for round in 0..rounds {
        let words = words_of(round);
        let (mut found, mut into) = (0, vec![0; words.len()]);
        let mut batch = [
            Verb::FetchAdd { addr: Addr::device(0), add: 1, found: &mut found },
            Verb::Write { addr, words: &words },
            Verb::Read { addr, into: &mut into },
        ];
        post(&mut lane, &mut batch[..]).await?;
        assert_eq!(into, words, "a lane at {addr:?} read its own words");
        sum += found;
    }
    Ok(sum)
}
