//! What a replay confirmed, in words.

use muster_replica::archive::{Replayed, Sample};

/// What a replay confirmed.
pub struct Summary {
    /// Rounds of the run.
    pub(super) rounds: u32,
    /// Bans that follow from their evidence.
    pub(super) bans: usize,
    /// Contributions recomputed, of how many that counted.
    pub(super) recomputed: (u64, u64),
    /// What was drawn, where not everything was recomputed.
    pub(super) sample: Option<Sample>,
    /// Everything else.
    pub(super) replayed: Replayed,
}

impl Summary {
    /// For people.
    pub fn lines(&self) -> Vec<String> {
        let (replayed, (recomputed, counted)) = (&self.replayed, self.recomputed);
        let loss = |loss: Option<&f64>| loss.map_or("none".into(), |loss| format!("{loss:.4}"));
        let how = match self.sample {
            None => format!("{} rounds replayed, every record and every state agrees", self.rounds),
            Some(_) => format!(
                "{} rounds followed, every record and every state agrees; {recomputed} of {counted} contributions were drawn and \
                 recomputed, the others taken as they were sealed",
                self.rounds
            ),
        };
        let mut lines = vec![
            how,
            format!("final state {:#}", replayed.root),
            format!(
                "loss {} in the first round, {} in the last; held-out {}",
                loss(replayed.losses.first()),
                loss(replayed.losses.last()),
                loss(replayed.held_out_loss.as_ref())
            ),
            format!("{} bans confirmed by re-executing their evidence", self.bans),
        ];
        for bad in &replayed.bad {
            let (round, member) = (bad.round, bad.member);
            let left = bad
                .factor
                .map_or_else(String::new, |factor| format!("; the rule left it {:.1} %", 100.0 * factor));
            lines.push(format!("round {round}: a false contribution of {member} counted{left}"));
        }
        lines
    }
}
