//! The client's side of the TCP fabric, against a mock node in the test, and against hostile ones.

mod drops;
mod faults;
mod hostile;
mod mock_node;
mod proxy;
mod shared;
mod verbs;
