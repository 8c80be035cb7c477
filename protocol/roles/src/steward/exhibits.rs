//! Exhibits: what replay needs of a convict and nobody can recompute, taken while somebody still has it.

mod caution;
mod counted;

use std::collections::{BTreeMap, BTreeSet};

use muster_core::bug::OrBug;
use muster_core::ids::{Block, MemberId, Part, Round};
use muster_core::ledger::Ledger;
use muster_core::messages::record::Body;
use muster_core::messages::wire::Notice;

use caution::{Caution, Lasting};
pub use counted::{Counted, OwedPart, PartName};

use super::{Bulletin, Steward, StewardEffect};

/// Tries to fetch what is owed.
const TRIES: u32 = 20;
/// Those that the run's end waits for where values stand for blocks.
const TRIES_AT_END: u32 = 3;
/// Milliseconds between two of them.
const PAUSE: u64 = 2_000;

/// Why a contribution is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Its author may be convicted: the blocks that counted stay here until their round is forgotten.
    Suspect,
    /// A verifier could not have it (TOL-12): it stays here until its round is forgotten.
    Lacking,
    /// Its author was convicted, and it counted: it stays for good.
    Convict,
}

/// How far the fetching is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FetchStage {
    Fetching(u32),
    /// To be tried again.
    Failed(u32, u64),
    Kept,
    GivenUp,
}

/// Parts of a round, and the blocks of each.
type PartBlocks = Vec<(Part, Vec<Block>)>;

/// What is fetched of whom, and what is there.
#[derive(Default)]
pub(super) struct Exhibits {
    taken: BTreeMap<(Round, MemberId), (Purpose, FetchStage)>,
    /// Contributions whose authors may be convicted.
    suspects: BTreeSet<(Round, MemberId)>,
    /// Convicts' parts that are kept, and those that are being written.
    parts: BTreeSet<PartName>,
    writing: BTreeSet<PartName>,
    /// Those of them that are kept only as long as audits last.
    caution: Caution,
    /// When what the disk did not take is written again.
    again: u64,
    /// Convicts' contributions that nobody has shown yet, and the parts that count them.
    unshown: BTreeMap<(Round, MemberId), PartBlocks>,
    /// Parts whose values are to be kept, because blocks of a convict are unavailable.
    owed_parts: Vec<OwedPart>,
}

impl Exhibits {
    /// Somebody may be convicted of this contribution.
    pub(super) fn suspect(&mut self, round: Round, member: MemberId) {
        self.suspects.insert((round, member));
    }

    /// What was fetched of a member before its ban is no exhibit yet.
    pub(super) fn banned(&mut self, member: &MemberId) {
        // It was stored until its round is forgotten: for an exhibit it is fetched, and kept, once more.
        self.taken.retain(|(_, author), _| author != member);
    }

    /// Gives up what belongs to forgotten rounds, whose contributions nobody keeps. Returns the exhibits that are lost.
    pub(super) fn forget(&mut self, ledger: &Ledger) -> Vec<(Round, MemberId)> {
        let forgotten = |round: Round| ledger.round(round).is_none();
        self.suspects.retain(|(round, _)| !forgotten(*round));
        let mut lost = Vec::new();
        for ((round, member), (purpose, stage)) in &mut self.taken {
            if forgotten(*round) && matches!(stage, FetchStage::Failed(..)) {
                *stage = FetchStage::GivenUp;
                // Of a suspect nothing is lost that replay needs.
                lost.extend((*purpose == Purpose::Convict).then_some((*round, *member)));
            }
        }
        // What convicts have left says whether their past can be looked into.
        self.taken.retain(|(round, _), (purpose, _)| !forgotten(*round) || *purpose == Purpose::Convict);
        lost
    }

    /// Whether everything of a convict that could be fetched is there. In `exact` recomputed leaves stand for it, and nobody
    /// waits for more than one try.
    pub(super) fn are_complete(&self, member: &MemberId, exact: bool) -> bool {
        let mut own = self.taken.iter().filter(|((_, author), _)| author == member);
        own.all(|(_, (_, stage))| match stage {
            FetchStage::Kept | FetchStage::GivenUp => true,
            FetchStage::Failed(..) => exact,
            FetchStage::Fetching(tries) => exact && *tries > 1,
        })
    }

    /// Whether a verifier that lacks this contribution can have it from the steward.
    pub(super) fn can_show(&self, round: Round, member: MemberId) -> bool {
        let taken = self.taken.get(&(round, member));
        matches!(taken, Some((Purpose::Lacking | Purpose::Convict, FetchStage::Kept)))
    }

    /// Whether something that the run's end waits for is not there yet: in `exact` the values of parts stand for blocks.
    pub(super) fn are_open(&self, exact: bool) -> bool {
        let most = if exact { TRIES_AT_END } else { TRIES };
        let open = |stage: &FetchStage| match stage {
            FetchStage::Fetching(tries) => *tries <= most,
            FetchStage::Failed(tries, _) => *tries < most,
            FetchStage::Kept | FetchStage::GivenUp => false,
        };
        self.taken.values().any(|(purpose, stage)| *purpose != Purpose::Suspect && open(stage))
    }

    /// What is to be fetched now of what is owed, each of which is under way from now on.
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

    /// When something is to be tried again.
    pub(super) fn timeout(&self, now: u64) -> Option<u64> {
        let failed = self.taken.values().filter_map(|(_, stage)| match stage {
            FetchStage::Failed(_, after) => Some(*after),
            _ => None,
        });
        failed.chain([self.again]).filter(|due| *due > now).min()
    }

    /// A convict's blocks are looked for: until they are here, these are the parts that count them.
    fn await_blocks(&mut self, owed: OwedContribution, parts: PartBlocks) {
        self.unshown.insert((owed.round, owed.member), parts);
    }

    /// The round is about to be forgotten: who was convicted shortly before may not have answered yet.
    fn owe_parts_of(&mut self, round: Round) {
        let unshown: Vec<_> = self.unshown.keys().filter(|(of, _)| *of <= round).copied().collect();
        unshown.iter().for_each(|name| self.owe_parts(name));
    }

    /// Nobody shows these blocks in time: the values of the parts that count them are to be kept.
    fn owe_parts(&mut self, name: &(Round, MemberId)) {
        let parts = self.unshown.remove(name).into_iter().flatten();
        self.owed_parts.extend(parts.map(|(part, blocks)| (name.0, part, blocks)));
    }

    /// Takes in how a fetch ended. Whether it was given up.
    fn ended(&mut self, now: u64, owed: OwedContribution, kept: bool) -> bool {
        let name = (owed.round, owed.member);
        match owed.purpose {
            Purpose::Convict if kept => _ = self.unshown.remove(&name),
            Purpose::Convict => self.owe_parts(&name),
            Purpose::Suspect | Purpose::Lacking => {}
        }
        // One of before a ban says nothing of what stays for good.
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

impl Steward {
    /// AUDIT-24: takes what counted of those who may be convicted, keeps what counted of convicts in all rounds that are
    /// remembered, and has what verifiers lack (TOL-12).
    pub(super) fn exhibit_wanted(&mut self) {
        let ledger = self.conductor.ledger();
        let exact = ledger.manifest().profile.is_replayable();
        let mut owed: BTreeMap<(Round, MemberId), Purpose> = BTreeMap::new();
        let mut owe = |name, purpose: Purpose| {
            let known = owed.entry(name).or_insert(purpose);
            // The later purpose includes the earlier one: an exhibit also serves a verifier that lacks the
            // contribution.
            *known = (*known).max(purpose);
        };
        // With a tolerance whole contributions are kept once somebody is convicted; nothing is replayed (TOL-11).
        for (round, member) in self.justice.exhibits.suspects.iter().filter(|_| exact) {
            let view = ledger.round(*round);
            if view.is_some_and(|view| view.slot_of(member).is_some_and(|slot| view.counted(slot))) {
                owe((*round, *member), Purpose::Suspect);
            }
        }
        self.board.docket().wanted().into_iter().for_each(|name| owe(name, Purpose::Lacking));
        for view in ledger.rounds() {
            // AUDIT-24: only what counted. Otherwise a convict could keep back a part that counted nowhere, and no
            // archive could be replayed.
            for (_, commitment) in view.commitments().filter(|(slot, _)| view.counted(*slot)) {
                if ledger.is_banned(&commitment.author) {
                    owe((view.round(), commitment.author), Purpose::Convict);
                }
            }
        }
        for owed in self.justice.exhibits.start(self.now, owed) {
            if exact && owed.purpose == Purpose::Convict {
                let parts = self.counting(owed);
                self.justice.exhibits.await_blocks(owed, parts);
            }
            self.effects.push_back(StewardEffect::Exhibit(owed));
        }
    }

    /// The parts that count a contribution and have a result.
    fn counting(&self, owed: OwedContribution) -> PartBlocks {
        let view = self.ledger().round(owed.round).or_bug("a round in which a convict counts");
        let Some(view) = view else { return Vec::new() };
        let parts = Counted::of(self.ledger(), view, &owed.member).parts.into_iter();
        parts.filter_map(|part| Some((part, view.parts().get(part.index())?.blocks.clone()))).collect()
    }

    /// Tells the verifiers that waited for a contribution that the steward has it now.
    pub(super) fn show_obtained(&mut self) {
        for (request, back) in self.board.obtained(self.conductor.ledger(), &self.justice.exhibits) {
            self.effects.push_back(StewardEffect::Post(Notice::Obtained(request)));
            back.into_iter().for_each(|body| self.conductor.propose(body));
        }
    }

    /// Keeps the values of every part that a convict signed, in the rounds that are remembered: they may be wrong, and replay
    /// cannot reduce what is wrong. So it is with what a convict contributed and nobody shows.
    pub(super) fn exhibit_parts(&mut self) {
        // A disk that is full is asked again after a pause and not in every turn.
        if self.now < self.justice.exhibits.again {
            return;
        }
        let mut owed = self.parts_to_keep(Round(u32::MAX));
        // One write of each part at a time: turns come faster than a disk.
        owed.retain(|(round, part, _)| self.justice.exhibits.writing.insert((*round, *part)));
        if !owed.is_empty() {
            self.effects.push_back(StewardEffect::KeepParts { parts: owed, at_once: false });
        }
    }

    /// Before a record with which rounds are forgotten, or nothing is fetched any more: what of them is to be kept by value is
    /// on the disk by then, so that nothing of it is lost wherever this steward is interrupted.
    pub(super) fn exhibit_before(&mut self, body: &Body) {
        let kept = self.ledger().manifest().retention.contributions;
        let oldest = match body {
            Body::Outcome(outcome) => Round(outcome.round.0.saturating_sub(kept)),
            Body::Begin(_) => Round(self.ledger().next_round().0.saturating_sub(kept.saturating_add(1))),
            // After the Close nothing is fetched any more.
            Body::Close(_) => Round(u32::MAX),
            _ => return,
        };
        self.justice.exhibits.owe_parts_of(oldest);
        let mut owed = self.parts_to_keep(oldest);
        // What an audit lasts of since the last Outcome.
        owed.extend(self.cautious_parts(oldest));
        if !owed.is_empty() {
            self.effects.push_back(StewardEffect::KeepParts { parts: owed, at_once: true });
        }
    }

    /// These were to be kept, and those among them could not be: they are owed still.
    pub(super) fn parts_kept(&mut self, owed: Vec<OwedPart>, lost: Vec<OwedPart>) {
        let now = self.now;
        let exhibits = &mut self.justice.exhibits;
        for (round, part, _) in owed {
            exhibits.writing.remove(&(round, part));
            exhibits.parts.insert((round, part));
        }
        for (round, part, _) in &lost {
            exhibits.parts.remove(&(*round, *part));
            exhibits.again = now + PAUSE;
        }
        exhibits.owed_parts.extend(lost);
    }

    /// The parts of rounds up to this one that are to be kept by value, and are not kept yet.
    fn parts_to_keep(&mut self, newest: Round) -> Vec<OwedPart> {
        let mut owed = Vec::new();
        let exhibits = &mut self.justice.exhibits;
        for part in std::mem::take(&mut exhibits.owed_parts) {
            if part.0 <= newest { owed.push(part) } else { exhibits.owed_parts.push(part) }
        }
        let ledger = self.conductor.ledger();
        for view in ledger.rounds().filter(|view| view.round() <= newest) {
            for (index, result) in view.results().into_iter().flatten().enumerate() {
                let part = Part(index as u16);
                // What a convict signed may be wrong without anybody having noticed, and replay cannot reduce what is
                // wrong.
                let convicted = view.signers(part).any(|signer| ledger.is_banned(&signer));
                let plan = view.parts().get(index).filter(|_| result.is_some() && convicted);
                owed.extend(plan.map(|plan| (view.round(), part, plan.blocks.clone())));
            }
        }
        owed.iter().for_each(|(round, part, _)| self.justice.exhibits.caution.keep(&(*round, *part)));
        let mut named = BTreeSet::new();
        owed.retain(|(round, part, _)| {
            !self.justice.exhibits.parts.contains(&(*round, *part)) && named.insert((*round, *part))
        });
        owed
    }

    /// AUDIT-24: the parts of rounds up to this one that count members of whom an audit lasts: their bans may come later.
    fn cautious_parts(&mut self, newest: Round) -> Vec<OwedPart> {
        let ledger = self.conductor.ledger();
        if !ledger.manifest().profile.is_replayable() {
            return Vec::new();
        }
        let lasting = Lasting::of(ledger, self.board.docket().open_cases(ledger));
        let Exhibits { caution, parts, writing, .. } = &mut self.justice.exhibits;
        let kept = |name: &PartName| parts.contains(name) || writing.contains(name);
        let views = ledger.rounds().filter(|view| view.round() <= newest);
        views.flat_map(|view| caution.take(ledger, view, &lasting, &kept)).collect()
    }

    /// After an Outcome: drops the parts that were kept for audits that are over and have convicted nobody, and keeps those of
    /// the round that the next Outcome makes forgotten, while there is time.
    pub(super) fn exhibit_cautiously(&mut self) {
        let ledger = self.conductor.ledger();
        let lasting = Lasting::of(ledger, self.board.docket().open_cases(ledger));
        let exhibits = &mut self.justice.exhibits;
        let dropped = exhibits.caution.drop_needless(ledger, &lasting, &exhibits.parts);
        dropped.iter().for_each(|name| _ = exhibits.parts.remove(name));
        if !dropped.is_empty() {
            self.effects.push_back(StewardEffect::DropParts(dropped));
        }
        let kept = self.ledger().manifest().retention.contributions.max(1);
        // The first Outcomes make no round forgotten.
        let next = self.ledger().next_round().0.checked_sub(kept).map(Round);
        let parts = next.map_or_else(Vec::new, |next| self.cautious_parts(next));
        if !parts.is_empty() {
            let names = parts.iter().map(|(round, part, _)| (*round, *part));
            self.justice.exhibits.writing.extend(names);
            self.effects.push_back(StewardEffect::KeepParts { parts, at_once: false });
        }
    }

    /// A contribution was fetched, or not.
    pub(super) fn exhibited(&mut self, owed: OwedContribution, kept: Result<(), String>) {
        let lost = self.justice.exhibits.ended(self.now, owed, kept.is_ok());
        if let (true, Err(why)) = (lost && owed.purpose == Purpose::Convict, kept) {
            self.tell(Bulletin::Lost(owed.round, owed.member, why));
        }
    }

    /// A round has ended.
    pub(super) fn forget_exhibits(&mut self) {
        for (round, member) in self.justice.exhibits.forget(self.conductor.ledger()) {
            self.tell(Bulletin::Lost(round, member, "its round is forgotten".into()));
        }
        self.exhibit_cautiously();
    }
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
