//! The model of network cards: it agrees with what was published, and with cases computed by hand.
#![forbid(unsafe_code)]

mod by_hand;
mod calls;
mod elements;
mod faults;
mod figure_1;
mod full;
mod published;
mod reservations;
