//! What a run takes of a disk, known before its text is fetched.
//!
//! What is counted is what the settings make everybody keep: the committed files, states, contributions, and the ledger with
//! as many seats as the run begins with. With more members the ledger is longer; [`longest_ledger`] bounds it.

use muster_core::layout::Layout;
use muster_core::limits::{OFFERS, OFFERS_FETCHED, PARTS, SEATS, SHARE_PARTS};
use muster_core::manifest::Manifest;
use muster_core::regime::Regime;

use crate::memory;
use crate::text::is_fetched_first;

/// States on disk for others at most: those that are kept, and the next one, which is written aside (STATE-10). Nothing is written
/// of one that is on the disk anyway.
fn offered(manifest: &Manifest) -> u64 {
    (OFFERS + OFFERS_FETCHED) as u64 + u64::from(!memory::is_away(manifest.model.parameters()))
}

/// Rounds between two states on the disk of a steward.
pub const STEWARD_STATE_ROUNDS: u32 = 16;

/// Bytes that a run takes, about, by what they are and the settings that they follow from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need(Vec<(u64, &'static str)>);

impl Need {
    /// In all.
    pub fn bytes(&self) -> u64 {
        self.0.iter().fold(0, |all, (bytes, _)| all.saturating_add(*bytes))
    }

    /// What most of it is: the largest parts, down to a tenth of the whole.
    pub fn because(&self) -> String {
        memory::largest(&self.0, self.bytes())
    }
}

/// What a node takes where all members can be dialled, and share the parts of a round.
pub fn contributing(manifest: &Manifest) -> Need {
    keeping(manifest, u64::from(manifest.aggregation.replicas))
}

/// What a node takes where it alone can be dialled: all parts of every other seat.
pub fn contributing_alone(manifest: &Manifest) -> Need {
    keeping(manifest, SEATS as u64)
}

/// What a node takes that keeps so many contributions of others from each round.
fn keeping(manifest: &Manifest, others: u64) -> Need {
    let path = manifest.model.parameters();
    let rounds = u64::from(manifest.retention.contributions).saturating_add(2);
    let contributions =
        memory::contribution(manifest).saturating_mul(others.saturating_add(1)).saturating_mul(rounds);
    // One is left behind by a membership.
    let whole = reals(path, 3).saturating_mul(1 + offered(manifest));
    Need(vec![
        (text_at_first(manifest), "the run's text"),
        (contributions, "retention.contributions"),
        (whole, "model.*"),
        (past(manifest, path), "retention.states"),
        (ledger(manifest, beginners(manifest)), LEDGER),
    ])
}

/// What there must be of the committed files: of a long training text as little as its outline, the rest as far as there is room.
/// The pages that losses are measured on are few.
fn text_at_first(manifest: &Manifest) -> u64 {
    let data = &manifest.data;
    if is_fetched_first(data) {
        return data.all_bytes();
    }
    let outlines = (data.bytes.saturating_add(data.held_out_bytes)) / 2048;
    data.all_bytes().saturating_sub(data.bytes).saturating_add(outlines)
}

/// What a verifier or an observer takes.
pub fn following(manifest: &Manifest) -> Need {
    let all = manifest.model.all_parameters();
    let vectors = if manifest.keeps_moments() { 3 } else { 1 };
    // Of rounds that are still open to audits, and of the one under way.
    let audited = reals(all, vectors).saturating_mul(u64::from(manifest.audit_window()).saturating_add(1));
    Need(vec![
        (text_at_first(manifest), "the run's text"),
        (audited, "retention.contributions"),
        // The newest, and the next one, which is written aside.
        (reals(all, 3).saturating_mul(2), "model.*"),
        (past(manifest, all), "retention.states"),
        (ledger(manifest, beginners(manifest)), LEDGER),
    ])
}

/// What a steward takes, which keeps the aggregates of `archived` rounds beside those that a restart needs.
pub fn hosting(manifest: &Manifest, archived: u32) -> Need {
    let all = manifest.model.all_parameters();
    let states = manifest.retention.states.min(manifest.training.rounds);
    // Of several rows none stays in memory.
    let away = all > manifest.model.parameters() || memory::is_away(all);
    let kept = newest(all, away).saturating_add(earlier(manifest, manifest.model.parameters()));
    let whole = u64::from(states / STEWARD_STATE_ROUNDS).saturating_add(2 + offered(manifest));
    let since = states.saturating_add(STEWARD_STATE_ROUNDS + 2);
    let updates = since.saturating_add(manifest.audit_window().max(manifest.model.lag()));
    let updates = updates.min(manifest.training.rounds).max(archived);
    Need(vec![
        (manifest.data.all_bytes(), "the run's text"),
        (reals(all, 3).saturating_mul(whole), "model.*"),
        (results(manifest).saturating_mul(u64::from(updates)), "the rounds whose aggregates are kept"),
        (kept, "retention.states"),
        (ledger(manifest, beginners(manifest)), LEDGER),
    ])
}

/// What a node writes at most from one round to the next, journal and blocks of others apart: its contribution, the last state,
/// and one for others.
pub fn growth_of_node(manifest: &Manifest) -> u64 {
    reals(manifest.model.parameters(), 1 + 3 + 3)
}

/// What a verifier or an observer writes at most from one round to the next, the journal apart: the last state and the one
/// before it, and what audits take of another.
pub fn growth_of_follower(manifest: &Manifest) -> u64 {
    let audited = if manifest.keeps_moments() { 3 } else { 1 };
    reals(manifest.model.all_parameters(), 3 + 3 + audited)
}

/// What the journal takes at the end of the run where every place is taken: what rounds seal, with the member's own votes.
pub fn longest_ledger(manifest: &Manifest) -> u64 {
    ledger(manifest, u64::from(manifest.admission.most_members).min(SEATS as u64))
}

/// Bytes of `count` vectors of so many values.
fn reals(parameters: u64, count: u64) -> u64 {
    parameters.saturating_mul(4).saturating_mul(count)
}

/// The results of a round, about a byte a value (AGG-24).
fn results(manifest: &Manifest) -> u64 {
    manifest.model.all_parameters().saturating_mul(Layout::of_run(manifest).planes() as u64)
}

/// States of so many parameters that are too large for the memory.
fn past(manifest: &Manifest, parameters: u64) -> u64 {
    newest(parameters, memory::is_away(parameters)).saturating_add(earlier(manifest, parameters))
}

/// The newest state and the next one, with their moments, where they are on the disk.
fn newest(parameters: u64, away: bool) -> u64 {
    if away { reals(parameters, 2 * 3) } else { 0 }
}

/// Earlier states, with their moments where the run may go back to them.
fn earlier(manifest: &Manifest, parameters: u64) -> u64 {
    let vectors = if manifest.keeps_moments() { 3 } else { 1 };
    let bytes = memory::past(manifest, reals(parameters, vectors));
    if bytes > memory::ROOM.past { bytes } else { 0 }
}

const LEDGER: &str = "training.rounds, for the ledger";
/// What a signature adds: run, author, signature and length.
const SIGNED: u64 = 32 + 32 + 64 + 4;
/// What a signed message is around its lists: of a record, height, previous head, round and lengths.
const RECORD: u64 = SIGNED + 128;
const COMMIT: u64 = SIGNED + 160;
const ECHO: u64 = SIGNED + 36;
const SEAT: u64 = 38;
const RESULT: u64 = SIGNED + 128;
/// Of an audit: one verdict of each contribution.
const CREDIT: u64 = 104;
/// What a Shares says of a seat.
const SHARE_MOVE: u64 = 3;
const BITMAP: u64 = SEATS as u64 / 8;
const SHARD: u64 = 160;
/// What a member says itself in a round, in its own journal.
const VOTES: u64 = COMMIT + 128;
/// Pages of the database are half full at worst, and a value beyond a page takes a power of two of them.
pub(crate) const PAGES: u64 = 2;

/// Seats that a run begins with.
fn beginners(manifest: &Manifest) -> u64 {
    u64::from(manifest.admission.start_nodes).clamp(1, SEATS as u64)
}

/// Bytes of the journal after all rounds with so many seats.
fn ledger(manifest: &Manifest, seats: u64) -> u64 {
    let rounds = u64::from(manifest.training.rounds);
    sealed(manifest, seats).saturating_add(VOTES).saturating_mul(PAGES).saturating_mul(rounds)
}

/// Bytes of what one round seals with so many seats: Freeze, Inputs, Shares and Outcome, once each.
fn sealed(manifest: &Manifest, seats: u64) -> u64 {
    let layout = Layout::of_run(manifest);
    let shards = layout.shards().len() as u64;
    let blocks = (layout.blocks().len() as u64).saturating_mul(layout.planes() as u64);
    // ASSIGN-5: a part for each aggregator, one of a shard at least, and none without a block. ASSIGN-12: several where lines are
    // uneven, which nobody knows before.
    let times = if Regime::of(manifest).weighs_lines() { SHARE_PARTS as u64 } else { 1 };
    let divisor = seats.saturating_mul(times).min(SEATS as u64);
    let parts = divisor.saturating_add(shards).min(blocks).min(PARTS as u64);
    let of_parts = parts.saturating_mul(RESULT * u64::from(manifest.aggregation.replicas) + BITMAP);
    let of_seats = seats.saturating_mul(COMMIT + ECHO + SEAT + CREDIT + SHARE_MOVE);
    (4 * RECORD)
        .saturating_add(of_seats)
        .saturating_add(of_parts)
        .saturating_add(shards.saturating_mul(SHARD))
}

#[cfg(test)]
mod tests {
    use muster_core::codec::{List, encode};
    use muster_core::ids::{Digest, Height, MemberId, Part, Round, RunId, ShareClass, Slot};
    use muster_core::manifest::Profile;
    use muster_core::manifest::fixture::tiny;
    use muster_core::messages::record::{
        Body, Credit, Freeze, Inputs, Outcome, Record, Seat, ShareMove, Shares,
    };
    use muster_core::messages::round::{Bitmap, Commit, Echo, PartResult};
    use muster_core::sign::{Identity, Signed};
    use muster_core::state::{ShardRoots, StateRoots};

    use super::*;

    fn manifest() -> Manifest {
        tiny(MemberId([1; 32]), MemberId([2; 32]), 1000, 4)
    }

    fn commit(slot: Slot, seats: u16) -> Commit {
        let digest = Digest([3; 32]);
        Commit {
            round: Round(9),
            head: digest,
            state: digest,
            slot,
            seats,
            route: None,
            leaves: 1,
            profile: Profile::Exact,
            loss: 0,
            root: digest,
        }
    }

    /// Bytes of the four records of a round with so many seats, parts and results that no rule allows more.
    fn round(manifest: &Manifest, seats: u64) -> u64 {
        let me = Identity::from_secret(&[7; 32]);
        let (run, digest, round) = (RunId(Digest([1; 32])), Digest([3; 32]), Round(9));
        let slots = || (0..seats as u16).map(Slot);
        let layout = Layout::of_run(manifest);
        let divisor = (seats as usize * SHARE_PARTS).min(SEATS);
        let parts = (layout.blocks().len() * layout.planes()).min(divisor + layout.shards().len());
        let record = |body| {
            let record = Record { height: Height(9), previous: digest, body };
            encode(&me.sign(run, &record) as &Signed<Record>).len() as u64
        };
        let result = |part| {
            let result = PartResult {
                round,
                part: Part(part as u16),
                attempt: 0,
                freeze: digest,
                inputs: Bitmap::default(),
                digest,
            };
            me.sign(run, &result)
        };
        let vectors = ShardRoots {
            step: 1,
            beta_powers: [0; 2],
            exponents: digest,
            parameters: digest,
            first: digest,
            second: digest,
        };
        let freeze = Freeze {
            round,
            state: digest,
            commits: List::new(slots().map(|slot| me.sign(run, &commit(slot, seats as u16))).collect())
                .unwrap(),
        };
        let inputs = Inputs { round, attempt: 0, parts: List::new(vec![Bitmap::default(); parts]).unwrap() };
        let credit = Credit { verdict: digest, round, member: me.id(), verifier: me.id(), leaves: 2 };
        let seat = Seat { member: me.id(), quota: 2, row: Default::default() };
        let outcome = Outcome {
            round,
            results: List::new((0..parts).map(|part| Some(result(part))).collect()).unwrap(),
            echoes: List::new(slots().map(|_| me.sign(run, &Echo { round, freeze: digest })).collect())
                .unwrap(),
            state: StateRoots { shards: List::new(vec![vectors; layout.shards().len()]).unwrap() },
            seats: List::new(slots().map(|_| seat.clone()).collect()).unwrap(),
            credits: List::new(slots().map(|_| credit.clone()).collect()).unwrap(),
            seconds: List::default(),
            steps: List::default(),
        };
        let moves = slots().map(|slot| ShareMove { slot, class: ShareClass(7) }).collect();
        let shares = Shares { round, moves: List::new(moves).unwrap() };
        let bodies =
            [Body::Freeze(freeze), Body::Inputs(inputs), Body::Shares(shares), Body::Outcome(outcome)];
        bodies.into_iter().map(record).sum()
    }

    #[test]
    fn limit_3_what_rounds_seal_is_foretold_and_no_more_than_twice_that() {
        let manifest = manifest();
        for seats in [1, 2, 16, 100, 256] {
            let (real, told) = (round(&manifest, seats), sealed(&manifest, seats));
            assert!(real <= told && told < 2 * real, "{seats} seats: {real} bytes, {told} are told");
        }
    }

    #[test]
    fn every_setting_that_fills_a_disk_is_counted_and_named() {
        let mut small = manifest();
        small.training.rounds = 100_000;
        let needs = |manifest: &Manifest| [contributing(manifest), following(manifest), hosting(manifest, 0)];
        let change = |change: &dyn Fn(&mut Manifest)| {
            let mut other = small.clone();
            change(&mut other);
            other
        };
        let states = change(&|manifest| manifest.retention.states = 100_000);
        let text = change(&|manifest| manifest.data.bytes += 1 << 40);
        let seats = change(&|manifest| manifest.admission.start_nodes = 256);
        for (large, why) in [(states, "retention.states"), (text, "the run's text"), (seats, LEDGER)] {
            for (before, after) in needs(&small).into_iter().zip(needs(&large)) {
                assert!(after.bytes() > before.bytes() && after.because().contains(why), "{after:?}");
            }
        }
        // An archive keeps the aggregate of every round.
        let parameters = small.model.all_parameters();
        let more = hosting(&small, 100_000).bytes() - hosting(&small, 0).bytes();
        assert!(more > parameters * 99_000, "{more}");
        assert!(longest_ledger(&small) > ledger(&small, 4));
        small.admission.most_members = 4;
        assert_eq!(longest_ledger(&small), ledger(&small, 4));
    }
}
