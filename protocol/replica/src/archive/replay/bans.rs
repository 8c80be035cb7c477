//! Bans: the evidence that each rests on is judged again.

use std::sync::Arc;

use muster_core::audit::{Claim, Judgement, claim, judge};
use muster_core::codec::decode;
use muster_core::contribution::PackedContribution;
use muster_core::ids::{Round, Slot};
use muster_core::messages::evidence::{Evidence, Reduction};
use muster_core::messages::record::Ban;
use muster_store::reading;

use super::Replay;
use super::contributions::base_of;
use crate::archive::{ReplayError, wrong};
use crate::held::KeptState;
use crate::witness::{Brought, Exhibited};

impl Replay<'_> {
    pub(super) fn ban(&mut self, ban: &Ban) -> Result<(), ReplayError> {
        // AUDIT-12: the seal is not believed here; each ban must follow from its evidence.
        let bytes = reading::evidence(&self.archive.folder, &ban.evidence)?;
        let bytes =
            bytes.ok_or_else(|| ReplayError::Wrong(format!("the evidence {} is missing", ban.evidence)))?;
        let evidence: Evidence = decode(&bytes).map_err(wrong(&format!("evidence {}", ban.evidence)))?;
        // The file may have been exchanged: the Ban names the evidence by its hash.
        if evidence.digest() != ban.evidence {
            return Err(ReplayError::Wrong(format!("the evidence {} has another hash", ban.evidence)));
        }
        let claim = claim(&self.archive.manifest, &evidence);
        let Claim { round, subject, .. } = claim.map_err(wrong(&format!("evidence {}", ban.evidence)))?;
        let mut brought = Brought { round: self.view(round).cloned(), ..Brought::default() };
        if let Evidence::Aggregation(part) = &evidence {
            self.bring_inputs(part, round, &mut brought)?;
        }
        // A steward that convicts without the integers (DUTY-10) may have had them later, and they prove more.
        let with = match reading::exhibit(&self.archive.folder, self.ledger.layout(), round, &subject)? {
            Some(q) => {
                // One of another length is nobody's.
                let q = PackedContribution::whole_of(self.ledger.layout(), &q).map(Arc::new);
                let contributions =
                    q.map(|q| ((round, subject), q)).into_iter().chain(brought.contributions.clone());
                Some(Brought { contributions: contributions.collect(), ..brought.clone() })
            }
            None => None,
        };
        let mut judgements = Vec::new();
        for brought in with.into_iter().chain([brought]) {
            let judgement = self.judge(&evidence, brought);
            if matches!(&judgement, Judgement::Guilty { culprit, finding, round, .. }
                // Guilty of something else is not what was sealed.
                if *culprit == ban.culprit && *finding == ban.finding && *round == ban.round)
            {
                return Ok(());
            }
            judgements.push(judgement);
        }
        Err(ReplayError::Wrong(format!(
            "the ban of {} does not follow from its evidence: {judgements:?}",
            ban.culprit
        )))
    }

    /// Re-executes what a ban rests on.
    fn judge(&mut self, evidence: &Evidence, brought: Brought) -> Judgement {
        let (manifest, dataset) = (&self.archive.manifest, self.archive.dataset.clone());
        let root = evidence.state(manifest.run()).map(|(_, root)| root);
        let held = self.held.values().find(|held| Some(held.roots.root()) == root);
        let states = held.map(|held| KeptState::of(held, manifest.keeps_moments(), true));
        let states = states.into_iter().collect();
        let mut witness = Exhibited::new(states, dataset, manifest, brought);
        judge(manifest, evidence, &mut witness, &mut self.arithmetic)
    }

    /// Adds the contributions that a part was to be made of.
    fn bring_inputs(
        &mut self,
        part: &Reduction,
        round: Round,
        brought: &mut Brought,
    ) -> Result<(), ReplayError> {
        let result = part.result.verify(self.archive.manifest.run()).map_err(wrong("a result"))?;
        let view = self.view(round).cloned();
        // Without them the judgement is undecided, which the caller reports as a ban that does not follow.
        let Some(view) = view.filter(|view| base_of(view, &self.state, &self.held).is_some()) else {
            return Ok(());
        };
        let mut slots: Vec<Slot> = Vec::new();
        for slot in result.inputs.slots() {
            let Some(member) = view.member_at(slot) else { continue };
            // AUDIT-24: kept beside the evidence; who judges opens each block against the committed root.
            match reading::exhibited_blocks(
                &self.archive.folder,
                self.ledger.layout(),
                round,
                &member,
                result.part,
            )? {
                Some(blocks) => {
                    brought.blocks.extend(blocks.into_iter().map(|data| ((member, data.block), data)));
                }
                None => slots.push(slot),
            }
        }
        let checked = self.contributions(&view, &slots, &|| ())?;
        for (slot, q) in checked.sums {
            let Some(member) = view.member_at(slot) else { continue };
            match checked.bad.get(&slot) {
                // No proof leads from the other blocks of such a contribution to its root.
                Some(blocks) if !blocks.is_empty() => {
                    let named = blocks.iter().map(|data| ((member, data.block), data.clone()));
                    brought.blocks.extend(named);
                }
                _ => {
                    let q = Arc::new(PackedContribution::new(self.ledger.layout(), &q));
                    brought.contributions.insert((round, member), q);
                }
            }
        }
        Ok(())
    }
}
