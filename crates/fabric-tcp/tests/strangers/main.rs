//! Strangers that try to hold everybody else up, by every means that the wire has, and what honest clients notice of
//! it. The whole program takes about 30 s.

#[expect(dead_code, reason = "helpers of the node's tests, of which these use some")]
#[path = "../node/client.rs"]
mod client;
mod door;
mod fairness;
#[expect(dead_code, reason = "helpers of the node's tests, of which these use some")]
#[path = "../node/served.rs"]
mod served;
