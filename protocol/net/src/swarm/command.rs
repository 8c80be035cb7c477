//! Commands to the driver.

use muster_core::ids::{MemberId, Row};
use muster_core::messages::gossip::Whereabouts;
use muster_core::sign::Verified;
use tokio::sync::oneshot;

use super::sieve::Topic;

pub(super) enum SwarmCommand {
    Publish(Topic, Vec<u8>),
    Announce(Vec<u8>),
    Find(MemberId, oneshot::Sender<Verified<Whereabouts>>),
    Hold(Option<Row>),
    Holders(Row, oneshot::Sender<Vec<MemberId>>),
    Dial(String),
}
