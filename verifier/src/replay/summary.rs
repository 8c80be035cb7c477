//! What a replay confirmed, in words.

use muster_core::ids::Height;
use muster_replica::archive::{Replayed, Resumed, Sample};
use muster_view::words::counted;

/// What a replay confirmed.
pub struct Summary {
    /// Rounds of the run.
    pub(super) rounds: u32,
    /// The records of the bans that follow from their evidence.
    pub(super) bans: Vec<Height>,
    /// Where this process went on, if an earlier one had begun.
    pub(super) earlier: Option<Resumed>,
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
        let (replayed, (recomputed, of)) = (&self.replayed, self.recomputed);
        let loss = |loss: Option<&f64>| loss.map_or("none".into(), |loss| format!("{loss:.4}"));
        let how = match self.sample {
            None => {
                format!("{} replayed, every record and every state agrees", counted(self.rounds, "round"))
            }
            Some(_) => format!(
                "{} followed, every record and every state agrees; {recomputed} of {of} contributions were drawn and \
                 recomputed, the others taken as they were sealed",
                counted(self.rounds, "round")
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
            format!("{} confirmed by re-executing the evidence", counted(self.bans.len(), "ban")),
        ];
        lines.extend(self.earlier.map(|earlier| self.not_here(earlier)));
        for bad in &replayed.bad {
            let (round, member) = (bad.round, bad.member);
            let left = bad
                .factor
                .map_or_else(String::new, |factor| format!("; the rule left it {:.1} %", 100.0 * factor));
            lines.push(format!("round {round}: a false contribution of {member} counted{left}"));
        }
        lines
    }

    /// Rounds that this process did not re-execute itself.
    pub(super) fn earlier_rounds(&self) -> u32 {
        self.earlier.map_or(0, |earlier| earlier.round.0)
    }

    fn not_here(&self, earlier: Resumed) -> String {
        let bans = self.bans.iter().filter(|ban| **ban < earlier.height).count();
        format!(
            "the {} before round {}, and {bans} of the bans, were checked by an earlier replay of yours, whose progress this \
             machine kept and sealed; the rest by this process (--fresh checks everything now)",
            counted(earlier.round.0, "round"),
            earlier.round
        )
    }
}
