//! What a membership carries over its channels.

use std::sync::{Arc, OnceLock};

use muster_net::endpoint::Endpoint;
use muster_store::home::Home;

use crate::pause::Watch;

/// The channels of a membership, and where its traffic is written down.
pub(crate) struct Line {
    endpoint: Endpoint,
    home: Arc<Home>,
}

impl Line {
    /// Puts the channels of a membership that is being opened into its `line`.
    pub(super) fn begin(line: &OnceLock<Self>, endpoint: &Endpoint, home: &Arc<Home>) {
        let _ = line.set(Self { endpoint: endpoint.clone(), home: home.clone() });
    }

    /// Counts what it has carried; at the `end` of a membership all of it is written down.
    pub(crate) fn count(&self, watch: &mut Watch, end: bool) {
        watch.look(carried(&self.endpoint));
        if let Err(error) = watch.keep(&self.home, end) {
            tracing::warn!("the traffic of this day is not written down: {error}");
        }
    }
}

/// Bytes over all channels of an endpoint.
pub(super) fn carried(endpoint: &Endpoint) -> u64 {
    endpoint.bytes_sent().saturating_add(endpoint.bytes_received())
}
