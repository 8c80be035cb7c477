//! What follows from looks at drawn blocks.

use muster_core::audit::Judgement;
use muster_core::messages::evidence::Reduction;
use tracing::{debug, warn};

use super::parts::{DrawnBlocks, Seen};
use super::{Verifier, VerifierEffect};

/// Drawn parts that are looked at at once: whoever lets one wait for an answer holds up no others.
const LOOKS: usize = 3;

impl Verifier {
    pub(super) fn may_look(&self) -> bool {
        !self.stopping && self.looks < LOOKS
    }

    /// The next drawn part to look at.
    pub(super) fn next_look(&mut self) -> Option<Box<DrawnBlocks>> {
        let drawn = if self.may_look() { self.parts.pop(self.now) } else { None }?;
        self.looks += 1;
        Some(Box::new(drawn))
    }

    pub(super) fn looked(&mut self, drawn: Box<DrawnBlocks>, seen: Seen) {
        let (round, part, author) = (drawn.result.round, drawn.result.part, drawn.author);
        match seen {
            Seen::Right => {
                let count = drawn.blocks.len();
                debug!("round {round}: part {part} of {author} passes: {count} drawn blocks are right");
            }
            Seen::Wrong(block) => {
                warn!("round {round}: block {block} of part {part} is not what the rule gives");
                // AUDIT-20: the whole part, from inputs fetched anew, before anybody is accused: the fault may be in
                // the first inputs.
                if let Some(evidence) = drawn.evidence() {
                    return self.effects.push_back(VerifierEffect::Doubt(drawn, Box::new(evidence)));
                }
            }
            Seen::Missing(what) => {
                if !self.parts.again(self.now, *drawn) {
                    warn!("round {round}: part {part} of {author} stays undecided: {what}");
                }
            }
        }
        self.looks = self.looks.saturating_sub(1);
    }

    /// The whole part was reduced again, before its aggregator is accused.
    pub(super) fn judged(
        &mut self,
        drawn: DrawnBlocks,
        evidence: Reduction,
        judgement: Result<Judgement, String>,
    ) {
        self.looks = self.looks.saturating_sub(1);
        let judged = match judgement {
            Ok(judgement) => self.audits.judged_part(evidence, judgement),
            Err(why) => {
                let (round, part) = (drawn.result.round, drawn.result.part);
                warn!("round {round}: part {part} is wrong, but there is no proof yet: {why}");
                // Inputs may be had later; without them no judge could convict.
                self.parts.again(self.now, drawn);
                return;
            }
        };
        if let Err(stop) = judged {
            self.halt(stop.into());
        }
    }
}
