//! Peer that computes as it should and takes its time over each step of an audit, so that verifiers look idle.
//!
//! While it has the word nobody else owes anything, and a turn that lasts too long is its own silence.

use std::time::Duration;

use muster_core::manifest::Manifest;
use muster_member::{Delay, NodeConduct};

pub(super) struct Late;

impl NodeConduct for Late {
    fn lingers(&self, over: Delay, manifest: &Manifest) -> Duration {
        // A little less than what AUDIT-8 gives it in rounds that are short.
        let least = Duration::from_millis(manifest.timers.audit.into()) / 11;
        if over == Delay::Audit { least } else { Duration::ZERO }
    }
}
