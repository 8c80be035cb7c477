//! Results of parts: they are shown to contributors before they are sealed, and a part that contributors
//! object to is reduced again.

use muster_core::audit::{Claim, Judgement};
use muster_core::bug;
use muster_core::bug::OrBug;
use muster_core::ids::Height;
use muster_core::ledger::Standing;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::round::PartResult;
use muster_core::messages::wire::Notice;
use muster_core::sign::Signed;

use super::Steward;
use super::accusation::Allegation;
use super::hearing::Ruling;
use super::interface::{Bulletin, StewardEffect};

impl Steward {
    /// Reduces a part again that contributors object to.
    pub(super) fn inspect(&mut self, result: Signed<PartResult>) {
        // A result that cannot even be put into evidence cannot be reduced again: it does not count
        // (ROUND-22).
        let Some(accusation) = self.suspicion(&result) else {
            let said = result.verify(self.ledger().run());
            return said.into_iter().for_each(|said| {
                self.conductor.inspected(self.now, said.part, &said.author(), false);
            });
        };
        let matter = self.court.matter(self.ledger(), &accusation);
        self.effects.push_back(StewardEffect::Inspect(Box::new(accusation), Box::new(matter)));
    }

    /// The accusation that this result calls for, if the part is wrong.
    fn suspicion(&self, result: &Signed<PartResult>) -> Option<Allegation> {
        let said = result.verify(self.ledger().run()).ok()?;
        let evidence = Evidence::Aggregation(self.ledger().round(said.round)?.reduction(&said, result)?);
        Some(Allegation {
            digest: evidence.digest(),
            evidence,
            accuser: self.identity.id(),
            claim: Claim { culprit: said.author(), subject: said.author(), round: said.round },
            owed: false,
            tries: 0,
            reply: None,
        })
    }

    /// A part was reduced again. A right result counts. Any other is struck, whether its aggregator lied or
    /// its inputs are unavailable.
    pub(super) fn inspected(&mut self, accusation: &Allegation, judgement: Judgement) {
        let Evidence::Aggregation(part) = &accusation.evidence else {
            bug!("a part that was reduced again; found: {:?}", accusation.claim);
            return;
        };
        let result = part.result.verify(self.ledger().run()).or_bug("a result that was checked before");
        let Some(result) = result else { return };
        let right = matches!(judgement, Judgement::NotGuilty(_));
        match judgement {
            Judgement::Guilty { .. } => {
                let ruling = Ruling::plain(accusation.evidence.clone(), judgement);
                self.in_court(|court, facts| court.rule(facts, accusation, ruling));
            }
            other => self.tell(Bulletin::Inspected(PartResult::clone(&result), right, other)),
        }
        self.conductor.inspected(self.now, result.part, &result.author(), right);
    }

    /// Shows the results that would be sealed and were not shown before, and fetches their values.
    pub(super) fn show_results(&mut self) {
        for signed in self.board.new_results(&self.conductor) {
            // ROUND-30: contributors are waited for once the values are here, so that these are fetched at
            // once.
            if let Ok(said) = signed.verify(self.ledger().run()) {
                let author = said.author();
                self.effects.push_back(StewardEffect::Prefetch(Box::new(said.into_inner()), author));
            }
            self.effects.push_back(StewardEffect::Post(Notice::Result(signed)));
        }
    }

    /// Says which members a record marks as failing (LEDGER-20).
    pub(super) fn tell_failures(&mut self, height: Height) {
        let members = self.conductor.ledger().members().iter();
        let lost = members.filter(|member| {
            member.since == height && member.failures > 0 && member.standing == Standing::Away
        });
        let lost: Vec<_> = lost.map(|member| member.id).collect();
        lost.into_iter()
            .for_each(|member| self.tell(Bulletin::Moved(member, "kept others waiting and is away")));
    }

    /// Says once who kept a round waiting.
    pub(super) fn tell_stalling(&mut self) {
        for member in self.told.stalling(self.conductor.stalling().copied().collect()) {
            self.tell(Bulletin::Moved(member, "did not check the results in time"));
        }
    }
}
