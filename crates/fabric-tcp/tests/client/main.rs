//! The client's side of the TCP fabric, against a node of a few lines that lives in the test, and against worse ones.

mod drops;
mod faults;
mod hostile;
mod mock_node;
mod proxy;
mod shared;
mod verbs;
