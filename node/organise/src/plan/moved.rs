//! What a round moves over the line of a member, and over which lines that comes in time.

use muster_core::manifest::Manifest;

use super::packed;

/// Lines that homes have at least, in Mbit/s: what runs are made for unless their settings name another one.
pub const LINE: f64 = 10.0;
/// Bytes a second of a Mbit/s.
pub const MEGABIT: f64 = 125e3;
/// How many times as long as the bytes take the timers last: a parcel that takes more than half of T_part goes to the steward
/// instead (ROUND-24), and what is combined and compared takes time, too.
pub const SHARE: f64 = 2.0;

/// Bytes of a round over the line of a member that combines an equal part, about the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moved {
    /// Of contributions, until they are delivered.
    pub parts: f64,
    /// Of results, until they are sealed.
    pub results: f64,
}

impl Moved {
    /// In a run.
    pub fn of(manifest: &Manifest) -> Self {
        let parameters = manifest.model.parameters() as f64;
        let (contribution, results) = packed(manifest, u32::from(manifest.admission.start_nodes).max(1));
        // Each aggregator of a part takes it in.
        let replicas = f64::from(manifest.aggregation.replicas.max(1));
        Self { parts: replicas * contribution * parameters, results: replicas * results * parameters }
    }

    /// The slowest line over which both come in time, in Mbit/s.
    pub fn least(&self, manifest: &Manifest) -> f64 {
        let timers = &manifest.timers;
        let rate = |bytes: f64, milliseconds: u32| SHARE * bytes / (f64::from(milliseconds) / 1e3) / MEGABIT;
        rate(self.parts, timers.part).max(rate(self.results, timers.result))
    }
}

/// What members need, for people.
pub fn needed(manifest: &Manifest) -> String {
    let moved = Moved::of(manifest);
    let megabytes = (moved.parts + moved.results) / 1e6;
    format!(
        "a round moves about {megabytes:.1} MB over each node's line, each way: it keeps up with at least {} Mbit/s (timers.line)",
        shown(moved.least(manifest))
    )
}

/// What an organiser should know of a run with which lines of homes cannot keep up.
pub fn too_much(manifest: &Manifest) -> Option<String> {
    let moved = Moved::of(manifest);
    let least = moved.least(manifest);
    (least > 1.01 * LINE).then(|| {
        format!(
            "a node whose line carries less than {} Mbit/s each way does not keep up: its parts come late and go through the steward, \
             and everybody waits for it. For lines of {LINE:.0} Mbit/s set timers.line = {LINE:.0}, whose rounds take {:.0} s for \
             bytes alone; a smaller model moves less, and [local] exchanges less often",
            shown(least),
            (moved.parts + moved.results) / (LINE * MEGABIT)
        )
    })
}

fn shown(rate: f64) -> String {
    // Upwards: a line of what is shown keeps up.
    if rate < 10.0 { format!("{:.1}", (10.0 * rate).ceil() / 10.0) } else { format!("{:.0}", rate.ceil()) }
}
