//! Exhibits: contributions and parts of convicts that replay needs and nobody can recompute, taken while
//! somebody still has them.

mod caution;
mod counted;

use std::collections::{BTreeMap, BTreeSet};

use muster_core::audit::docket::Docket;
use muster_core::bug::OrBug;
use muster_core::ids::{Block, MemberId, Part, Round};
use muster_core::ledger::Ledger;
use muster_core::messages::record::Body;

use caution::{Caution, Lasting};
pub use counted::{Counted, OwedPart, PartName};

/// Tries to fetch an owed contribution.
const TRIES: u32 = 20;
/// Tries that the run's end waits for where values stand for blocks.
const TRIES_AT_END: u32 = 3;
/// Milliseconds between two tries.
const PAUSE: u64 = 2_000;

/// Why a contribution is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Its author may be convicted: the blocks that counted stay until their round is forgotten.
    Suspect,
    /// A verifier lacks the contribution (TOL-12): it stays until its round is forgotten.
    Lacking,
    /// Its author was convicted, and the contribution counted: it stays for good.
    Convict,
}

/// A contribution that is fetched, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwedContribution {
    /// The round that it was contributed to.
    pub round: Round,
    /// Its author.
    pub member: MemberId,
    /// What it is kept for.
    pub purpose: Purpose,
}

/// How far a fetch is; the tries so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FetchStage {
    Fetching(u32),
    /// Tried again from this time on.
    Failed(u32, u64),
    Kept,
    GivenUp,
}

/// Parts of a round, and the blocks of each.
type PartBlocks = Vec<(Part, Vec<Block>)>;

/// Contributions and parts that are fetched and kept.
#[derive(Default)]
pub(super) struct Exhibits {
    taken: BTreeMap<(Round, MemberId), (Purpose, FetchStage)>,
    /// Contributions whose authors may be convicted.
    suspects: BTreeSet<(Round, MemberId)>,
    /// Parts that are kept by value.
    parts: BTreeSet<PartName>,
    /// Parts that are being written.
    writing: BTreeSet<PartName>,
    /// Parts among them that are kept only as long as audits last.
    caution: Caution,
    /// When parts that the disk did not take are written again.
    again: u64,
    /// Convicts' contributions that nobody has shown yet, with the parts that count them.
    unshown: BTreeMap<(Round, MemberId), PartBlocks>,
    /// Parts whose values are to be kept, because a convict's blocks are unavailable.
    owed_parts: Vec<OwedPart>,
}

impl Exhibits {
    /// The author of this contribution may be convicted.
    pub(super) fn suspect(&mut self, round: Round, member: MemberId) {
        self.suspects.insert((round, member));
    }

    /// A member is banned: contributions that were fetched before are no exhibits yet.
    pub(super) fn banned(&mut self, member: &MemberId) {
        // They are stored until their round is forgotten. An exhibit is fetched, and kept for good, once
        // more.
        self.taken.retain(|(_, author), _| author != member);
    }

    /// Gives up contributions of forgotten rounds, which nobody keeps. Returns the exhibits that are lost.
    pub(super) fn forget(&mut self, ledger: &Ledger) -> Vec<(Round, MemberId)> {
        let forgotten = |round: Round| ledger.round(round).is_none();
        self.suspects.retain(|(round, _)| !forgotten(*round));
        let mut lost = Vec::new();
        for ((round, member), (purpose, stage)) in &mut self.taken {
            if forgotten(*round) && matches!(stage, FetchStage::Failed(..)) {
                *stage = FetchStage::GivenUp;
                // Replay needs no contribution of a mere suspect.
                lost.extend((*purpose == Purpose::Convict).then_some((*round, *member)));
            }
        }
        // Convicts' exhibits say whether their past can be looked into.
        self.taken.retain(|(round, _), (purpose, _)| !forgotten(*round) || *purpose == Purpose::Convict);
        lost
    }

    /// Whether all of a convict's contributions are here that could be fetched. In `exact` recomputed leaves
    /// stand for them, and nobody waits for more than one try.
    pub(super) fn are_complete(&self, member: &MemberId, exact: bool) -> bool {
        let mut own = self.taken.iter().filter(|((_, author), _)| author == member);
        own.all(|(_, (_, stage))| match stage {
            FetchStage::Kept | FetchStage::GivenUp => true,
            FetchStage::Failed(..) => exact,
            FetchStage::Fetching(tries) => exact && *tries > 1,
        })
    }

    /// Whether a contribution that the run's end waits for is not here yet. In `exact` the values of parts
    /// stand for its blocks, so that fewer tries are waited for.
    pub(super) fn are_open(&self, exact: bool) -> bool {
        let most = if exact { TRIES_AT_END } else { TRIES };
        let open = |stage: &FetchStage| match stage {
            FetchStage::Fetching(tries) => *tries <= most,
            FetchStage::Failed(tries, _) => *tries < most,
            FetchStage::Kept | FetchStage::GivenUp => false,
        };
        self.taken.values().any(|(purpose, stage)| *purpose != Purpose::Suspect && open(stage))
    }

    /// When a fetch or a write is tried again.
    pub(super) fn timeout(&self, now: u64) -> Option<u64> {
        let failed = self.taken.values().filter_map(|(_, stage)| match stage {
            FetchStage::Failed(_, after) => Some(*after),
            _ => None,
        });
        failed.chain([self.again]).filter(|due| *due > now).min()
    }

    /// AUDIT-24: begins to fetch what counted of members that may be convicted, and what counted of convicts
    /// in the rounds that are remembered; and contributions that verifiers lack (TOL-12).
    pub(super) fn fetch(&mut self, now: u64, ledger: &Ledger, docket: &Docket) -> Vec<OwedContribution> {
        let exact = ledger.manifest().profile.is_replayable();
        let owed = self.owed(ledger, docket, exact);
        let begun = self.start(now, owed);
        for owed in begun.iter().filter(|owed| exact && owed.purpose == Purpose::Convict) {
            self.await_blocks(*owed, counting(ledger, *owed));
        }
        begun
    }

    /// A contribution was fetched, or not. Returns whether an exhibit is lost with that.
    pub(super) fn fetched(&mut self, now: u64, owed: OwedContribution, kept: bool) -> bool {
        self.ended(now, owed, kept) && owed.purpose == Purpose::Convict
    }

    /// Whether a verifier that lacks this contribution can have it from the steward.
    pub(super) fn can_show(&self, round: Round, member: MemberId) -> bool {
        let taken = self.taken.get(&(round, member));
        matches!(taken, Some((Purpose::Lacking | Purpose::Convict, FetchStage::Kept)))
    }

    /// The parts whose values are to be written now, in the rounds that are remembered: every part that a
    /// convict signed, since it may be wrong and replay cannot reduce it again; and the parts that count what
    /// a convict contributed and nobody shows.
    pub(super) fn write(&mut self, now: u64, ledger: &Ledger) -> Vec<OwedPart> {
        // A disk that is full is asked again after a pause and not in every turn.
        if now < self.again {
            return Vec::new();
        }
        let mut owed = self.parts_to_keep(ledger, Round(u32::MAX));
        // One write of each part at a time: turns come faster than a disk.
        owed.retain(|(round, part, _)| self.writing.insert((*round, *part)));
        owed
    }

    /// The parts whose values must be on the disk before this record: with it rounds are forgotten, or
    /// nothing is fetched any more. So nothing of them is lost wherever this steward is interrupted.
    pub(super) fn write_before(&mut self, ledger: &Ledger, docket: &Docket, body: &Body) -> Vec<OwedPart> {
        let kept = ledger.manifest().retention.contributions;
        let oldest = match body {
            Body::Outcome(outcome) => Round(outcome.round.0.saturating_sub(kept)),
            Body::Begin(_) => Round(ledger.next_round().0.saturating_sub(kept.saturating_add(1))),
            // After the Close nothing is fetched any more.
            Body::Close(_) => Round(u32::MAX),
            _ => return Vec::new(),
        };
        self.owe_parts_of(oldest);
        let mut owed = self.parts_to_keep(ledger, oldest);
        // Audits that have lasted since the last Outcome.
        owed.extend(self.cautious_parts(ledger, docket, oldest));
        owed
    }

    /// These parts were to be kept, and the lost ones among them could not be: they are owed still.
    pub(super) fn written(&mut self, now: u64, owed: Vec<OwedPart>, lost: Vec<OwedPart>) {
        for (round, part, _) in owed {
            self.writing.remove(&(round, part));
            self.parts.insert((round, part));
        }
        for (round, part, _) in &lost {
            self.parts.remove(&(*round, *part));
            self.again = now + PAUSE;
        }
        self.owed_parts.extend(lost);
    }

    /// After an Outcome: the parts to drop. They were kept for audits that are over and have convicted
    /// nobody.
    pub(super) fn drop_needless(&mut self, ledger: &Ledger, docket: &Docket) -> Vec<PartName> {
        let lasting = Lasting::of(ledger, docket.open_cases(ledger));
        let dropped = self.caution.drop_needless(ledger, &lasting, &self.parts);
        dropped.iter().for_each(|name| _ = self.parts.remove(name));
        dropped
    }

    /// After an Outcome: the parts of the round that the next Outcome makes forgotten, to be written while
    /// there is time.
    pub(super) fn write_ahead(&mut self, ledger: &Ledger, docket: &Docket) -> Vec<OwedPart> {
        let kept = ledger.manifest().retention.contributions.max(1);
        // The first Outcomes make no round forgotten.
        let next = ledger.next_round().0.checked_sub(kept).map(Round);
        let parts = next.map_or_else(Vec::new, |next| self.cautious_parts(ledger, docket, next));
        self.writing.extend(parts.iter().map(|(round, part, _)| (*round, *part)));
        parts
    }

    /// Contributions to have, and why.
    fn owed(&self, ledger: &Ledger, docket: &Docket, exact: bool) -> BTreeMap<(Round, MemberId), Purpose> {
        let mut owed: BTreeMap<(Round, MemberId), Purpose> = BTreeMap::new();
        let mut owe = |name, purpose: Purpose| {
            let known = owed.entry(name).or_insert(purpose);
            // The later purpose includes the earlier one: an exhibit also serves a verifier that lacks the
            // contribution.
            *known = (*known).max(purpose);
        };
        // With a tolerance whole contributions are kept once somebody is convicted; nothing is replayed
        // (TOL-11).
        for (round, member) in self.suspects.iter().filter(|_| exact) {
            let view = ledger.round(*round);
            if view.is_some_and(|view| view.slot_of(member).is_some_and(|slot| view.counted(slot))) {
                owe((*round, *member), Purpose::Suspect);
            }
        }
        docket.wanted().into_iter().for_each(|name| owe(name, Purpose::Lacking));
        for view in ledger.rounds() {
            // AUDIT-24: only what counted. Otherwise a convict could keep back a part that counted nowhere,
            // and no archive could be replayed.
            for (_, commitment) in view.commitments().filter(|(slot, _)| view.counted(*slot)) {
                if ledger.is_banned(&commitment.author) {
                    owe((view.round(), commitment.author), Purpose::Convict);
                }
            }
        }
        owed
    }

    /// The parts of rounds up to this one that are to be kept by value, and are not kept yet.
    fn parts_to_keep(&mut self, ledger: &Ledger, newest: Round) -> Vec<OwedPart> {
        let mut owed = Vec::new();
        for part in std::mem::take(&mut self.owed_parts) {
            if part.0 <= newest { owed.push(part) } else { self.owed_parts.push(part) }
        }
        for view in ledger.rounds().filter(|view| view.round() <= newest) {
            for (index, result) in view.results().into_iter().flatten().enumerate() {
                let part = Part(index as u16);
                // Nobody may have noticed that a part which a convict signed is wrong, and replay cannot
                // reduce a wrong part again.
                let convicted = view.signers(part).any(|signer| ledger.is_banned(&signer));
                let plan = view.parts().get(index).filter(|_| result.is_some() && convicted);
                owed.extend(plan.map(|plan| (view.round(), part, plan.blocks.clone())));
            }
        }
        owed.iter().for_each(|(round, part, _)| self.caution.keep(&(*round, *part)));
        let mut named = BTreeSet::new();
        owed.retain(|(round, part, _)| {
            !self.parts.contains(&(*round, *part)) && named.insert((*round, *part))
        });
        owed
    }

    /// AUDIT-24: the parts of rounds up to this one that count members whose audits last: their bans may come
    /// later.
    fn cautious_parts(&mut self, ledger: &Ledger, docket: &Docket, newest: Round) -> Vec<OwedPart> {
        if !ledger.manifest().profile.is_replayable() {
            return Vec::new();
        }
        let lasting = Lasting::of(ledger, docket.open_cases(ledger));
        let Self { caution, parts, writing, .. } = self;
        let kept = |name: &PartName| parts.contains(name) || writing.contains(name);
        let views = ledger.rounds().filter(|view| view.round() <= newest);
        views.flat_map(|view| caution.take(ledger, view, &lasting, &kept)).collect()
    }

    /// Begins the fetches among these that are due.
    fn start(&mut self, now: u64, owed: BTreeMap<(Round, MemberId), Purpose>) -> Vec<OwedContribution> {
        let mut start = Vec::new();
        for (name, purpose) in owed {
            let tries = match self.taken.get(&name) {
                None => 0,
                Some((_, FetchStage::Failed(tries, after))) if now >= *after => *tries,
                Some(_) => continue,
            };
            self.taken.insert(name, (purpose, FetchStage::Fetching(tries + 1)));
            start.push(OwedContribution { round: name.0, member: name.1, purpose });
        }
        start
    }

    /// A convict's blocks are being fetched. These parts count them.
    fn await_blocks(&mut self, owed: OwedContribution, parts: PartBlocks) {
        self.unshown.insert((owed.round, owed.member), parts);
    }

    /// Rounds up to this one are about to be forgotten: blocks of recent convicts may not be here yet.
    fn owe_parts_of(&mut self, round: Round) {
        let unshown: Vec<_> = self.unshown.keys().filter(|(of, _)| *of <= round).copied().collect();
        unshown.iter().for_each(|name| self.owe_parts(name));
    }

    /// These blocks are unavailable: the values of the parts that count them are to be kept.
    fn owe_parts(&mut self, name: &(Round, MemberId)) {
        let parts = self.unshown.remove(name).into_iter().flatten();
        self.owed_parts.extend(parts.map(|(part, blocks)| (name.0, part, blocks)));
    }

    /// Takes the outcome of a fetch. Returns whether it was given up.
    fn ended(&mut self, now: u64, owed: OwedContribution, kept: bool) -> bool {
        let name = (owed.round, owed.member);
        match owed.purpose {
            Purpose::Convict if kept => _ = self.unshown.remove(&name),
            Purpose::Convict => self.owe_parts(&name),
            Purpose::Suspect | Purpose::Lacking => {}
        }
        // A fetch from before a ban says nothing about the exhibit.
        let Some((_, stage)) = self.taken.get_mut(&name).filter(|(purpose, _)| *purpose == owed.purpose)
        else {
            return false;
        };
        let tries = if let FetchStage::Fetching(tries) = stage { *tries } else { 0 };
        *stage = match kept {
            true => FetchStage::Kept,
            false if tries >= TRIES => FetchStage::GivenUp,
            false => FetchStage::Failed(tries, now + PAUSE),
        };
        *stage == FetchStage::GivenUp
    }
}

/// The parts that count a contribution and have a result.
fn counting(ledger: &Ledger, owed: OwedContribution) -> PartBlocks {
    let view = ledger.round(owed.round).or_bug("a round in which a convict counts");
    let Some(view) = view else { return Vec::new() };
    let parts = Counted::of(ledger, view, &owed.member).parts.into_iter();
    parts.filter_map(|part| Some((part, view.parts().get(part.index())?.blocks.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_core::manifest::fixture::tiny;

    use super::*;

    const ROUND: Round = Round(3);
    const CHEAT: MemberId = MemberId([12; 32]);
    const OTHER: MemberId = MemberId([11; 32]);

    fn owe(
        exhibits: &mut Exhibits,
        now: u64,
        member: MemberId,
        purpose: Purpose,
    ) -> Option<OwedContribution> {
        exhibits.start(now, BTreeMap::from([((ROUND, member), purpose)])).pop()
    }

    #[test]
    fn what_was_fetched_before_a_ban_is_kept_once_more_as_an_exhibit() {
        let mut exhibits = Exhibits::default();
        let before = owe(&mut exhibits, 0, CHEAT, Purpose::Suspect).unwrap();
        let other = owe(&mut exhibits, 0, OTHER, Purpose::Suspect).unwrap();
        assert!(!exhibits.ended(0, other, true));
        exhibits.banned(&CHEAT);
        let after = owe(&mut exhibits, 0, CHEAT, Purpose::Convict).unwrap();
        assert!(owe(&mut exhibits, 0, OTHER, Purpose::Suspect).is_none(), "it is there");
        // The fetch of before the ban ends later, and has kept nothing for good.
        exhibits.ended(1, before, true);
        assert!(!exhibits.are_complete(&CHEAT, false) && exhibits.are_open(false));
        exhibits.ended(2, after, true);
        assert!(exhibits.are_complete(&CHEAT, false) && !exhibits.are_open(false));
    }

    /// The values of the parts stand for blocks that nobody shows, from the first failure on.
    #[test]
    fn what_nobody_shows_of_a_convict_is_kept_by_value() {
        let mut exhibits = Exhibits::default();
        let parts = vec![(Part(1), vec![Block(2)])];
        for (now, kept) in [(0, true), (1, false)] {
            let owed = owe(&mut exhibits, now, if kept { CHEAT } else { OTHER }, Purpose::Convict).unwrap();
            exhibits.await_blocks(owed, parts.clone());
            exhibits.ended(now, owed, kept);
        }
        assert_eq!(exhibits.owed_parts, [(ROUND, Part(1), vec![Block(2)])]);
    }

    /// Rounds may be forgotten before the holders' patience is over.
    #[test]
    fn what_is_forgotten_before_it_is_shown_is_kept_by_value() {
        let mut exhibits = Exhibits::default();
        let owed = owe(&mut exhibits, 0, CHEAT, Purpose::Convict).unwrap();
        exhibits.await_blocks(owed, vec![(Part(0), vec![Block(0)])]);
        let manifest = tiny(MemberId([1; 32]), MemberId([2; 32]), 4, 2);
        exhibits.owe_parts_of(ROUND);
        exhibits.forget(&Ledger::new(Arc::new(manifest)));
        assert_eq!(exhibits.owed_parts, [(ROUND, Part(0), vec![Block(0)])]);
        exhibits.ended(9, owed, false);
        assert_eq!(exhibits.owed_parts.len(), 1);
    }

    #[test]
    fn patience_with_an_exhibit_is_bounded_and_a_suspect_holds_up_no_end() {
        let mut exhibits = Exhibits::default();
        let suspect = owe(&mut exhibits, 0, OTHER, Purpose::Suspect).unwrap();
        assert!(!exhibits.are_open(false));
        exhibits.ended(0, suspect, false);
        assert!(!exhibits.are_open(false));
        let mut now = 0;
        for tried in 1..=TRIES {
            let owed = owe(&mut exhibits, now, CHEAT, Purpose::Convict).unwrap();
            assert!(exhibits.are_open(false) && !exhibits.are_complete(&CHEAT, false));
            assert_eq!(exhibits.ended(now, owed, false), tried == TRIES);
            assert!(owe(&mut exhibits, now, CHEAT, Purpose::Convict).is_none(), "not at once");
            now += PAUSE;
        }
        assert!(!exhibits.are_open(false) && exhibits.are_complete(&CHEAT, false));
    }
}
