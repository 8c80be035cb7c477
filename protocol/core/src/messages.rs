//! Everything that members say to each other, as canonical bytes.
//!
//! What is signed is a [`crate::sign::Message`]; what only crosses one channel is a [`wire::Request`] or a
//! [`wire::Response`].

pub mod audit;
pub mod call;
pub mod enrol;
pub mod evidence;
pub mod gossip;
mod line;
pub mod offer;
pub mod record;
pub mod round;
pub mod wire;
