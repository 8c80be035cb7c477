//! After a conviction: which of the convict's counted contributions and of the parts that it signed were false, how far
//! they moved the aggregates, and whether the state goes back for it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use muster_core::audit::{Judgement, recompute_sum};
use muster_core::ids::{Block, Digest, MemberId, Part, Round, Slot};
use muster_core::ledger::{Ledger, RoundView, Stage, Standing};
use muster_core::manifest::Profile;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::{Ban, Body, Rewind};
use muster_core::messages::round::{Bitmap, Commit};
use muster_core::reduction::reduce;
use muster_core::sketch::probe::WRONG;
use muster_core::state::State;
use muster_replica::{Brought, Exhibited, PartInputs};
use tokio::time::timeout;

use super::actor::{Actor, Message};
use super::court::{Court, Wanted, Wants};

/// For the inputs of a part; half of it is left to the next one after each that was not to be had. So a convict's friends
/// that keep inputs back hold up a Rewind for twice as long and no longer, however many parts it signed.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is left at least for a contribution of others.
const LEAST: Duration = Duration::from_secs(1);

/// What is known of one convict.
pub(super) enum Retro {
    /// Its last round is not over, or its exhibits are not there yet.
    Waiting(Ban),
    /// Being measured.
    Measuring(Ban),
    /// The state is to go back: these rounds were moved.
    Beyond(Ban, Vec<Round>),
    /// Nothing more follows.
    Over,
}

impl Retro {
    /// Whether something may still follow.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self, Self::Over)
    }
}

/// What came of one round.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Past {
    pub(super) round: Round,
    /// Of what the convict contributed, if that counted.
    pub(super) contribution: Option<Found>,
    /// Of the parts that it signed.
    pub(super) parts: Vec<(Part, Found)>,
    /// How far all that is false moved the aggregate, where that was measured.
    pub(super) harm: Option<f64>,
    /// What was found wrong of parts: others may have signed the same.
    wrong: Vec<Evidence>,
}

/// What came of one contribution, or of one part.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Found {
    /// It is what the state and the text give, or the rule.
    Right,
    /// It is not, or cannot be shown to be.
    False,
    /// It could not be computed again, and why.
    Unknown(String),
}

impl Past {
    /// Whether something of the convict's was false.
    pub(super) fn is_bad(&self) -> bool {
        let mut found = self.contribution.iter().chain(self.parts.iter().map(|(_, found)| found));
        found.any(|found| *found == Found::False)
    }
}

/// A round in which the convict counted or signed a part.
pub(super) struct Job {
    view: RoundView,
    convict: MemberId,
    commit: Option<Commit>,
    /// Root of the state before the round.
    state: Digest,
    /// What it signed, with the inputs.
    parts: Vec<(Part, Evidence, PartInputs)>,
    /// Everybody else who counted, with where their contributions are.
    others: Vec<(Slot, Commit, Wanted)>,
    measure: bool,
}

impl Job {
    /// The rounds that are remembered and over, in order.
    pub(super) fn of(ledger: &Ledger, convict: &MemberId) -> Vec<Self> {
        let over = ledger.rounds().filter(|view| view.results().is_some());
        over.filter_map(|view| Self::in_round(ledger, view, convict)).collect()
    }

    fn in_round(ledger: &Ledger, view: &RoundView, convict: &MemberId) -> Option<Self> {
        let banned = |member: &MemberId| {
            ledger.member(member).is_none_or(|member| member.standing == Standing::Banned)
        };
        let slot = view.slot_of(convict).filter(|slot| view.counted(*slot));
        let commit = slot.and_then(|slot| Some(view.commitment(slot)?.commit.clone()));
        let parts = signed_parts(ledger, view, convict);
        if commit.is_none() && parts.is_empty() {
            return None;
        }
        let others = view.commitments().filter(|(slot, c)| view.counted(*slot) && !banned(&c.author));
        let others = others.filter_map(|(slot, c)| {
            Some((slot, c.commit.clone(), Wanted::of(ledger, view.round(), c.author)?))
        });
        let measure = ledger.manifest().rollback.is_on() && ledger.state_before(view.round()).is_some();
        let (view, state) = (view.clone(), view.state().root());
        Some(Self { view, convict: *convict, commit, state, parts, others: others.collect(), measure })
    }
}

/// What a member signed of the parts that a round sealed, with what shows whether it is right.
fn signed_parts(ledger: &Ledger, view: &RoundView, member: &MemberId) -> Vec<(Part, Evidence, PartInputs)> {
    let signed = (0..view.parts().len()).flat_map(|part| view.signed_results_of(Part(part as u16)));
    let own = signed.filter(|signed| signed.claimed_signer() == *member);
    let found = own.filter_map(|signed| {
        let result = signed.verify(ledger.run()).ok()?;
        let evidence = Evidence::Aggregation(view.reduction(&result, signed)?);
        Some((result.part, evidence, PartInputs::of(ledger, &result)?))
    });
    found.collect()
}

impl Court {
    /// Computes again what a convict contributed to a round and which parts it signed and, where something is false, the
    /// aggregate without the convicts. What is not to be had of a part leaves the next one half of the patience.
    pub(super) async fn retro(self: Arc<Self>, mut job: Job, patience: &mut Duration) -> Past {
        let round = job.view.round();
        let state = {
            let replica = self.replica.lock().unwrap_or_else(PoisonError::into_inner);
            replica.state_at(&job.state)
        };
        let mut past = Past { round, contribution: None, parts: Vec::new(), harm: None, wrong: Vec::new() };
        if let Some(commit) = &job.commit {
            past.contribution = Some(self.clone().contributed(&job.convict, commit, state.as_ref()).await);
        }
        for (part, evidence, inputs) in std::mem::take(&mut job.parts) {
            let wants = Wants::Part(Box::new(inputs));
            let examined = self.clone().examine_part(evidence.clone(), wants, *patience).await;
            let judgement = examined.unwrap_or_else(|failure| Judgement::Undecided(failure.to_string()));
            let found = match judgement {
                Judgement::NotGuilty(_) => Found::Right,
                Judgement::Guilty { .. } => {
                    past.wrong.push(evidence);
                    Found::False
                }
                Judgement::Undecided(why) | Judgement::Malformed(why) => {
                    *patience /= 2;
                    Found::Unknown(why)
                }
            };
            past.parts.push((part, found));
        }
        if let Some(state) = state.filter(|_| job.measure && past.is_bad()) {
            past.harm = self.harm(job, state, patience).await;
        }
        past
    }

    /// Whether a convict's contribution is what the state and the text give.
    async fn contributed(
        self: Arc<Self>,
        convict: &MemberId,
        commit: &Commit,
        state: Option<&Arc<State>>,
    ) -> Found {
        let Some(state) = state else { return Found::Unknown("the state is not kept any more".into()) };
        let committed = self.home.load_exhibit(commit.round, convict).ok();
        match self.recomputed(commit, state, committed).await {
            None => Found::Unknown("the text is not at hand".into()),
            Some((_, true)) => Found::Right,
            Some((_, false)) => Found::False,
        }
    }

    /// A contribution by recomputation, and whether it is what was committed. What takes the committed integers is not
    /// without them: ROLLBACK-1 has a convict show that it was right.
    async fn recomputed(
        self: Arc<Self>,
        commit: &Commit,
        state: &Arc<State>,
        committed: Option<Vec<i32>>,
    ) -> Option<(Vec<i32>, bool)> {
        let (court, commit, state) = (self.clone(), commit.clone(), state.clone());
        let task = tokio::task::spawn_blocking(move || {
            let nothing = Brought::default();
            let mut text = Exhibited::new(Vec::new(), court.dataset.clone(), &court.manifest, nothing);
            let mut arithmetic = court.arithmetic.lock().unwrap_or_else(PoisonError::into_inner);
            let sum = recompute_sum(&court.manifest, &commit, &state, &mut text, &mut **arithmetic)?;
            let deviation = sum.deviation(&court.manifest, &commit, || committed);
            let right = deviation.is_some_and(|deviation| deviation <= WRONG);
            Some((sum.q, right))
        });
        task.await.ok().flatten()
    }

    /// ROLLBACK-2: how far the aggregate that was applied is from the one without the convicts.
    async fn harm(self: Arc<Self>, job: Job, state: Arc<State>, patience: &mut Duration) -> Option<f64> {
        let inputs = self.clone().inputs(&job.others, &state, patience).await?;
        let court = self.clone();
        let task = tokio::task::spawn_blocking(move || {
            let applied = court.home.load_update(job.view.round()).ok()?;
            let without = court.without(&job.view, &inputs)?;
            let blocks = court.layout.blocks().iter().zip(&applied.present).filter(|(_, present)| **present);
            let places = blocks.flat_map(|(block, _)| block.range.clone());
            let pairs = places.map(|place| Some((*applied.values.get(place)?, *without.get(place)?)));
            Some(movement(pairs.flatten()))
        });
        task.await.ok().flatten()
    }

    /// What others contributed. ROLLBACK-2: recomputed leaves stand for what cannot be had, whether or not they give its
    /// root: else who withholds a part would keep everybody's poison in the state.
    async fn inputs(
        self: Arc<Self>,
        others: &[(Slot, Commit, Wanted)],
        state: &Arc<State>,
        patience: &mut Duration,
    ) -> Option<BTreeMap<Slot, Vec<i32>>> {
        let mut inputs = BTreeMap::new();
        for (slot, commit, wanted) in others {
            let q = match self.in_time(wanted, patience).await {
                Some(q) => q,
                None => self.clone().recomputed(commit, state, None).await?.0,
            };
            inputs.insert(*slot, q);
        }
        Some(inputs)
    }

    /// A contribution; whoever lets it wait for theirs leaves the next one half of the patience.
    async fn in_time(&self, wanted: &Wanted, patience: &mut Duration) -> Option<Vec<i32>> {
        let q = timeout((*patience).max(LEAST), self.fetch(wanted)).await.ok().and_then(Result::ok);
        if q.is_none() {
            *patience /= 2;
        }
        q
    }

    /// The aggregate of a round from these contributions alone; zero where none is left.
    fn without(&self, view: &RoundView, inputs: &BTreeMap<Slot, Vec<i32>>) -> Option<Vec<f32>> {
        let layout = &self.layout;
        let mut values = vec![0.0; layout.parameters()];
        let commitment = |slot: Slot| view.commitment(slot);
        let input = |slot: Slot, block: Block| inputs.get(&slot)?.get(layout.block(block)?.range.clone());
        for ((plan, result), sealed) in view.parts().iter().zip(view.results()?).zip(view.inputs()) {
            let mut left = Bitmap::default();
            sealed.slots().filter(|slot| inputs.contains_key(slot)).for_each(|slot| left.insert(slot));
            if result.is_none() || left.is_empty() {
                continue;
            }
            let reduced = reduce(&self.manifest, layout, &plan.blocks, &left, commitment, input)?;
            for (block, reduced) in plan.blocks.iter().zip(&reduced.values) {
                let place = values.get_mut(layout.block(*block)?.range.clone())?;
                place.copy_from_slice(reduced.get(..place.len())?);
            }
        }
        Some(values)
    }
}

/// ROLLBACK-2: ‖u − u′‖ / ‖u‖ of pairs (u, u′), squares added in order in f64; 0 where u is 0.
fn movement(pairs: impl Iterator<Item = (f32, f32)>) -> f64 {
    let (mut moved, mut size) = (0.0f64, 0.0f64);
    for (with, without) in pairs {
        let (with, without) = (f64::from(with), f64::from(without));
        moved += (with - without) * (with - without);
        size += with * with;
    }
    if size > 0.0 { (moved / size).sqrt() } else { 0.0 }
}

/// When the state may go back.
struct Times {
    /// The next round.
    now: Round,
    /// What it has to be for a Rewind.
    allowed: Round,
    /// Rounds that a Rewind goes back at most.
    most: u32,
}

/// Whose first round within reach the state goes back for now: the earliest of all, because the next Rewind is far away.
/// So those that are still being measured are waited for, but not for so long that the earliest gets out of reach.
fn first_of(
    beyond: impl Iterator<Item = (MemberId, Round)>,
    times: &Times,
    measuring: bool,
) -> Option<(MemberId, Round)> {
    let (member, to) = beyond.min_by_key(|(member, round)| (*round, *member))?;
    let can_wait = times.now.0.saturating_sub(to.0) < times.most;
    let go = times.allowed <= times.now && !(measuring && can_wait);
    go.then_some((member, to))
}

impl Actor {
    /// After a restart: who passed by a false verdict may not have been examined yet (DUTY-10).
    pub(super) fn examine_acquitted(&mut self) {
        let bans = self.justice.retros.values().filter_map(|retro| match retro {
            Retro::Waiting(ban) => Some((ban.evidence, ban.accuser)),
            _ => None,
        });
        let bans: Vec<(Digest, MemberId)> = bans.collect();
        for (digest, accuser) in bans {
            let evidence = self.court.home.load_evidence(&digest).ok();
            let of_member = evidence.and_then(|evidence| evidence.against_the_acquitted(self.ledger().run()));
            of_member.into_iter().for_each(|evidence| self.owe_hearing(accuser, evidence));
        }
    }

    /// Somebody was convicted.
    pub(super) fn examine_past(&mut self, ban: &Ban) {
        self.justice.retros.insert(ban.culprit, Retro::Waiting(ban.clone()));
    }

    /// Goes on with what follows from convictions.
    pub(super) fn pursue_past(&mut self) {
        let members: Vec<MemberId> = self.justice.retros.keys().copied().collect();
        for member in members {
            if let Some(Retro::Waiting(ban)) = self.justice.retros.get(&member)
                && self.is_complete(ban)
            {
                let ban = ban.clone();
                self.measure(ban);
            }
        }
        if self.justice.retros.values().any(|retro| matches!(retro, Retro::Beyond(..))) {
            self.go_back();
        }
    }

    /// Whether all that a convict ever contributes is there.
    fn is_complete(&self, ban: &Ban) -> bool {
        let exact = self.ledger().manifest().profile == Profile::Exact;
        self.ledger().next_round() >= ban.effective && self.justice.exhibits.are_complete(&ban.culprit, exact)
    }

    fn measure(&mut self, ban: Ban) {
        let (culprit, jobs) = (ban.culprit, Job::of(self.ledger(), &ban.culprit));
        if jobs.is_empty() {
            // A verifier, or a node that never counted and reduced nothing.
            self.justice.retros.insert(culprit, Retro::Over);
            return;
        }
        self.justice.retros.insert(culprit, Retro::Measuring(ban));
        let (court, sender) = (self.court.clone(), self.sender.clone());
        tokio::spawn(async move {
            let (mut past, mut patience) = (Vec::new(), PATIENCE);
            for job in jobs {
                past.push(court.clone().retro(job, &mut patience).await);
            }
            let _ = sender.send(Message::Measured(culprit, past)).await;
        });
    }

    /// The past of a convict was measured.
    pub(super) fn measured(&mut self, culprit: MemberId, past: &[Past]) {
        self.report.retro(culprit, past);
        past.iter().flat_map(|past| &past.wrong).for_each(|evidence| self.examine_second(evidence));
        let harms: Vec<(Round, f64)> =
            past.iter().filter_map(|past| Some((past.round, past.harm?))).collect();
        let total: f64 = harms.iter().map(|(_, harm)| harm).sum();
        let limit = &self.ledger().manifest().rollback;
        let beyond = limit.is_on() && total > f64::from(limit.limit.value());
        let rounds = harms.into_iter().map(|(round, _)| round).collect();
        let retro = match self.justice.retros.remove(&culprit) {
            Some(Retro::Measuring(ban)) if beyond => Retro::Beyond(ban, rounds),
            _ => Retro::Over,
        };
        self.justice.retros.insert(culprit, retro);
    }

    /// ROLLBACK-3: proposes to go back to before the first bad round of all convicts, once that may be sealed.
    fn go_back(&mut self) {
        let ledger = self.ledger();
        let going = match ledger.stage() {
            Stage::Exchanging | Stage::Reducing => return,
            stage => matches!(stage, Stage::Gathering | Stage::Computing),
        };
        let reach = |round: &&Round| {
            let held = || ledger.state_before(**round).is_some_and(|state| self.holds(&state.root()));
            going && ledger.can_rewind_to(**round) && held()
        };
        let beyond = self.justice.retros.values().filter_map(|retro| {
            let Retro::Beyond(ban, rounds) = retro else { return None };
            Some((ban.culprit, rounds.iter().find(reach).copied()))
        });
        let (within, out): (Vec<_>, Vec<_>) = beyond.partition(|(_, first)| first.is_some());
        let measuring = self.justice.retros.values().any(|retro| matches!(retro, Retro::Measuring(_)));
        let times = Times {
            now: ledger.next_round(),
            allowed: ledger.next_rewind(),
            most: ledger.manifest().rollback.most_rounds,
        };
        let back = first_of(
            within.iter().filter_map(|(member, first)| Some((*member, (*first)?))),
            &times,
            measuring,
        );
        let rewind = back.and_then(|(member, to)| {
            let Some(Retro::Beyond(ban, _)) = self.justice.retros.get(&member) else { return None };
            Some(Rewind { to, state: *ledger.state_before(to)?, evidence: ban.evidence })
        });
        for (culprit, _) in out {
            let why = "no round of it is within reach of a Rewind any more";
            self.report.line(&format!("what {culprit} did is beyond rollback.limit, but {why}"));
            self.justice.retros.insert(culprit, Retro::Over);
        }
        if let Some(rewind) = rewind {
            self.conductor.propose(Body::Rewind(rewind));
        }
    }

    fn holds(&self, root: &Digest) -> bool {
        let replica = self.court.replica.lock().unwrap_or_else(PoisonError::into_inner);
        replica.state_at(root).is_some_and(|state| !state.first.is_empty())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;
    use std::sync::Mutex;

    use muster_compute::{Exact, Machine};
    use muster_core::contribution::Commitment;
    use muster_core::layout::Layout;
    use muster_core::manifest::{Manifest, Profile};
    use muster_core::sign::Identity;
    use muster_net::endpoint::Endpoint;
    use muster_replica::{Peers, Replica};
    use muster_store::dataset::{self, Dataset, Text};
    use muster_store::home::Home;

    use tokio::sync::Semaphore;

    use super::*;
    use crate::config::{Makers, Settings};
    use crate::intake::shelf::Shelf;
    use crate::steward::court::{HOARD, SHOWING};
    use crate::steward::hearing::Second;

    /// A tiny model.
    pub(in crate::steward) const TINY: &str = "
        [model]
        width = 8
        layers = 1
        heads = 2
        key_value_heads = 2
        hidden = 12
        sequence = 16
    ";
    const TOLERANT: &str = "
        [arithmetic]
        profile = \"f32\"
        tolerance = [1e-3]
        loss_tolerance = 1e-3
    ";

    /// A court of these settings at the beginning of a run, and who seals its records.
    pub(in crate::steward) fn court(folder: &Path, settings: &str) -> (Court, Arc<Identity>) {
        let text = |name: &str| {
            let bytes = "to muster is to gather, and to inspect. ".repeat(40).into_bytes();
            vec![Ok(Text { name: name.into(), bytes })]
        };
        let place = folder.join("corpus");
        let data = dataset::pack(text("train"), text("held out"), &place, &mut |_| ()).unwrap();
        let identity = Arc::new(Identity::from_secret(&[2; 32]));
        let makers = Makers { organiser: MemberId([0; 32]), steward: identity.id(), nonce: [0; 16] };
        let settings = Settings::parse(Path::new("run.toml"), settings).unwrap();
        let manifest = Arc::new(settings.manifest(&makers, data.clone()).unwrap());
        let dataset = Arc::new(Dataset::open(&place, &data).unwrap());
        let replica = Replica::genesis(manifest.clone(), dataset.clone(), 1, None).unwrap();
        let layout = Arc::new(Layout::of(&manifest.model));
        let home = Home::open(&folder.join("home")).unwrap();
        let (failed, _) = tokio::sync::mpsc::channel(1);
        let court = Court {
            shelf: Arc::new(Shelf::new(layout.clone(), Arc::new(home.clone()), failed)),
            layout,
            home,
            keep_aggregates: false,
            peers: Peers::new(Endpoint::new(manifest.run(), identity.clone())),
            dataset,
            replica: Arc::new(Mutex::new(replica)),
            arithmetic: Arc::new(Mutex::new(Box::new(Exact::new(1, None).unwrap()))),
            second: Second::new(Machine::new(1, None)),
            hoard: Semaphore::new(HOARD),
            showing: Semaphore::new(SHOWING),
            manifest,
        };
        (court, identity)
    }

    fn commit(manifest: &Manifest, state: Digest, root: Digest, loss: i64) -> Commit {
        let (round, slot, profile) = (Round(0), Slot(1), Profile::F32);
        assert_eq!(manifest.profile, profile);
        Commit { round, head: Digest::default(), state, slot, seats: 2, leaves: 2, profile, loss, root }
    }

    #[tokio::test]
    async fn rollback_2_a_withheld_part_hides_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let court = Arc::new(court(folder.path(), &format!("{TINY}{TOLERANT}")).0);
        let (root, state) = court.replica.lock().unwrap().snapshot();
        let honest = commit(&court.manifest, root, Digest::default(), 0);
        let (own, _) = court.clone().recomputed(&honest, &state, None).await.unwrap();
        // Another machine's sum, one off in one place, and its loss.
        let mut theirs = own.clone();
        theirs[0] += 1;
        let nothing = Brought::default();
        let mut text = Exhibited::new(Vec::new(), court.dataset.clone(), &court.manifest, nothing);
        let mut exact = Exact::new(1, None).unwrap();
        let sum = recompute_sum(&court.manifest, &honest, &state, &mut text, &mut exact).unwrap();
        let theirs_root = Commitment::new(&court.layout, &theirs).root();
        let commit = commit(&court.manifest, root, theirs_root, sum.loss);
        // A convict shows that it was right, or it was not.
        let found = |committed| court.clone().recomputed(&commit, &state, committed);
        assert!(found(Some(theirs.clone())).await.unwrap().1);
        assert!(!found(None).await.unwrap().1);
        assert!(!found(Some(theirs.iter().map(|q| 10 * q).collect())).await.unwrap().1);
        // Nobody has what this one contributed.
        let wanted = Wanted::lost(Round(0), MemberId([9; 32]), theirs_root);
        assert!(court.fetch(&wanted).await.is_err());
        let inputs =
            court.clone().inputs(&[(Slot(1), commit.clone(), wanted)], &state, &mut PATIENCE.clone()).await;
        assert_eq!(inputs, Some(BTreeMap::from([(Slot(1), own)])));
    }

    #[test]
    fn rollback_3_the_state_goes_back_for_whoever_began_first() {
        let [early, late] = [9, 1].map(|number| MemberId([number; 32]));
        let both = || [(late, Round(50)), (early, Round(40))].into_iter();
        let times = |now, allowed| Times { now: Round(now), allowed: Round(allowed), most: 16 };
        assert_eq!(first_of(both(), &times(52, 52), false), Some((early, Round(40))));
        // Too soon after another one: later, if it is within reach then.
        assert_eq!(first_of(both(), &times(52, 55), false), None);
        // Somebody else may have begun earlier; but the fortieth is not waited out of reach.
        assert_eq!(first_of(both(), &times(55, 52), true), None);
        assert_eq!(first_of(both(), &times(56, 52), true), Some((early, Round(40))));
        assert_eq!(first_of(std::iter::empty(), &times(52, 52), false), None);
    }

    #[test]
    fn movement_is_relative() {
        let of = |with: [f32; 2], without: [f32; 2]| movement(with.into_iter().zip(without));
        assert_eq!(of([3.0, 4.0], [3.0, 4.0]), 0.0);
        assert_eq!(of([3.0, 4.0], [0.0, 0.0]), 1.0);
        assert_eq!(of([3.0, 4.0], [-3.0, -4.0]), 2.0);
        assert_eq!(of([0.0, 0.0], [1.0, 0.0]), 0.0);
    }
}
