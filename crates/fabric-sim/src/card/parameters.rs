//! The constants of network cards, from ConnectX-3 to ConnectX-7. docs/network-model.md gives the source of each.

use std::fmt;
use std::str::FromStr;

/// A network card of which the constants are known, more or less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Card {
    /// 40 Gbit/s, PCIe 3.0 x8.
    ConnectX3,
    /// 100 Gbit/s, PCIe 3.0 x16: the card of the paper's testbed, by whose figure 1 it is calibrated.
    ConnectX5,
    /// 200 Gbit/s, PCIe 4.0 x16.
    ConnectX6,
    /// 400 Gbit/s, PCIe 5.0 x16.
    ConnectX7,
}

impl Card {
    /// All cards, oldest first.
    pub const ALL: [Card; 4] = [Card::ConnectX3, Card::ConnectX5, Card::ConnectX6, Card::ConnectX7];

    /// Returns the name of the card, such as `connectx-5`.
    pub const fn name(self) -> &'static str {
        match self {
            Card::ConnectX3 => "connectx-3",
            Card::ConnectX5 => "connectx-5",
            Card::ConnectX6 => "connectx-6",
            Card::ConnectX7 => "connectx-7",
        }
    }

    /// Returns the constants of the card.
    pub const fn parameters(self) -> CardParameters {
        match self {
            Card::ConnectX3 => CONNECTX_3,
            Card::ConnectX5 => CONNECTX_5,
            Card::ConnectX6 => CONNECTX_6,
            Card::ConnectX7 => CONNECTX_7,
        }
    }
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is not that of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCard(pub String);

impl fmt::Display for UnknownCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Card::ALL.map(Card::name).join(", ");
        write!(f, "unknown network card {:?}; known are {names}", self.0)
    }
}

impl std::error::Error for UnknownCard {}

impl FromStr for Card {
    type Err = UnknownCard;

    fn from_str(text: &str) -> Result<Card, UnknownCard> {
        Card::ALL.into_iter().find(|card| card.name() == text).ok_or_else(|| UnknownCard(text.to_owned()))
    }
}

/// The constants of a card. Times of one message or byte are picoseconds, latencies are nanoseconds.
///
/// The times for messages are those between two messages of a card that is busy. Each of the card's
/// [`CardParameters::units`] and [`CardParameters::atomic_engines`] takes as many times longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardParameters {
    /// The processing units, which serve messages side by side. A queue pair belongs to one of them.
    pub units: u32,
    /// A READ of at most one word.
    pub word_read_ps: u64,
    /// A longer READ, besides its bytes.
    pub read_ps: u64,
    /// A byte of a READ.
    pub read_byte_ps: u64,
    /// A WRITE, besides its bytes.
    pub write_ps: u64,
    /// A byte of a WRITE.
    pub write_byte_ps: u64,
    /// The message of an atomic, besides its execution.
    pub atomic_message_ps: u64,
    /// The engines that execute atomics side by side. A word belongs to one of them.
    pub atomic_engines: u32,
    /// The execution of an atomic in the device space, between two atomics on different words.
    pub device_atomic_ps: u64,
    /// The execution of an atomic in the main space, between two atomics on different words.
    pub main_atomic_ps: u64,
    /// The execution of an atomic in the device space, between two atomics on one word.
    pub device_word_ps: u64,
    /// The execution of an atomic in the main space, between two atomics on one word.
    pub main_word_ps: u64,
    /// A message that a client's card sends or receives.
    pub client_message_ps: u64,
    /// The latency of a read of the host's memory through PCIe, besides its bytes.
    pub fetch_ns: u64,
    /// Added to the latency of such a read if the host's memory is read rarely.
    pub idle_fetch_ns: u64,
    /// The mean time between such reads above which the host's memory is read rarely.
    pub idle_after_ns: u64,
    /// The latency of a write to the host's memory through PCIe, after which a WRITE is acknowledged.
    pub store_ns: u64,
    /// A byte on PCIe, in each direction.
    pub pcie_byte_ps: u64,
    /// A byte on the link, in each direction.
    pub link_byte_ps: u64,
}

const CONNECTX_5: CardParameters = CardParameters {
    units: 6,
    word_read_ps: 10_180,
    read_ps: 16_600,
    read_byte_ps: 63,
    write_ps: 5_000,
    write_byte_ps: 63,
    atomic_message_ps: 5_000,
    atomic_engines: 2,
    device_atomic_ps: 10_970,
    main_atomic_ps: 19_700,
    device_word_ps: 111_400,
    main_word_ps: 341_400,
    client_message_ps: 5_000,
    fetch_ns: 480,
    idle_fetch_ns: 134,
    idle_after_ns: 80,
    store_ns: 113,
    pcie_byte_ps: 64,
    link_byte_ps: 80,
};

const CONNECTX_3: CardParameters = CardParameters {
    units: 2,
    word_read_ps: 38_000,
    read_ps: 38_000,
    read_byte_ps: 130,
    write_ps: 28_000,
    write_byte_ps: 130,
    atomic_message_ps: 28_000,
    atomic_engines: 1,
    device_atomic_ps: 370_000,
    main_atomic_ps: 370_000,
    device_word_ps: 370_000,
    main_word_ps: 370_000,
    client_message_ps: 28_000,
    pcie_byte_ps: 127,
    link_byte_ps: 200,
    ..CONNECTX_5
};

const CONNECTX_6: CardParameters = CardParameters {
    word_read_ps: 9_470,
    read_ps: 15_440,
    read_byte_ps: 32,
    write_ps: 4_650,
    write_byte_ps: 32,
    atomic_message_ps: 4_650,
    client_message_ps: 4_650,
    pcie_byte_ps: 32,
    link_byte_ps: 40,
    ..CONNECTX_5
};

const CONNECTX_7: CardParameters = CardParameters {
    word_read_ps: 5_990,
    read_ps: 9_760,
    read_byte_ps: 16,
    write_ps: 2_940,
    write_byte_ps: 16,
    atomic_message_ps: 2_940,
    client_message_ps: 2_940,
    pcie_byte_ps: 16,
    link_byte_ps: 20,
    ..CONNECTX_5
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cards_are_read_and_written() {
        for card in Card::ALL {
            assert_eq!(card.to_string().parse(), Ok(card));
        }
        let unknown = "connectx-4".parse::<Card>().expect_err("no such card");
        let known = "connectx-3, connectx-5, connectx-6, connectx-7";
        assert_eq!(unknown.to_string(), format!("unknown network card \"connectx-4\"; known are {known}"));
    }
}
