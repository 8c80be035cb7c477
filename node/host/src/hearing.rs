//! The bench of a hearing: evidence is fetched and re-executed, beside the runtime.

use std::sync::Arc;
use std::time::Duration;

use muster_core::audit::{Judgement, judge, judge_reduction};
use muster_core::ids::{Block, MemberId, Round};
use muster_core::lock::lock;
use muster_core::messages::audit::FindingKind;
use muster_core::messages::evidence::Evidence;
use muster_core::regime::Regime;
use muster_core::state::Arithmetic;
use muster_replica::bundle::{Asked, Recorder};
use muster_replica::exit::{Failure, Outcome};
use muster_replica::{Brought, Exhibited, patience};
use muster_roles::steward::hearing::{Bench, Matter, Patience, Ruling, hear};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use super::court::{Court, Wants};

/// Tries to fetch what evidence needs before it is judged without it, where nothing else stands for that.
const TRIES: u32 = 3;
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(700);

impl Court {
    /// Examines a matter. It waits for what the matter wants for `patience` at most: a holder that stalls must not delay the
    /// next examination.
    ///
    /// # Errors
    /// [`Failure`] when two code paths of this machine do not agree on whom a ban for life would fall (AUDIT-12), or the disk
    /// does not take what a ban rests on.
    pub(super) async fn hear(
        self: Arc<Self>,
        matter: Matter,
        wants: Wants,
        patience: Duration,
    ) -> Outcome<Ruling> {
        let runtime = Handle::current();
        let evidence = matter.evidence.clone();
        let task = tokio::task::spawn_blocking(move || {
            let brought = Brought::default();
            let mut bench = CourtBench { court: self, runtime, wants, patience, brought, permit: None };
            hear(&matter, &mut bench)
        });
        let undecided = |error| {
            let why = format!("the examination failed: {error}");
            Ok(Ruling { open: true, ..Ruling::plain(evidence, Judgement::Undecided(why)) })
        };
        task.await.unwrap_or_else(undecided)
    }

    /// Judges on the first code path, and where a ban for life would follow from leaves in `exact`, on the second one too.
    fn judge_twice(&self, evidence: &Evidence, brought: &Brought) -> Outcome<Judgement> {
        let (judgement, asked) = self.judge(evidence, brought.clone());
        let Judgement::Guilty { culprit, round, finding, .. } = &judgement else { return Ok(judgement) };
        // AUDIT-12: what messages decide needs no arithmetic, and where there is a tolerance a jury judges.
        if !self.is_exact() || !finding.is_recomputed() {
            self.bundle(evidence, asked);
            return Ok(judgement);
        }
        // The accuser may lie, so that its second opinion is no substitute: without this one, one machine
        // alone would decide a ban for life.
        let mut witness = self.witness(evidence, brought.clone());
        let second =
            |arithmetic: &mut dyn Arithmetic| judge(&self.manifest, evidence, &mut witness, arithmetic);
        match self.second.with(&self.manifest, second)? {
            Judgement::Guilty { culprit: other, finding: also, .. }
                if other == *culprit && also == *finding =>
            {
                self.bundle(evidence, asked);
                Ok(judgement)
            }
            // Neither result can be trusted, nor any later one of this machine: it stops.
            other => Err(differ(*round, culprit, *finding, &other)),
        }
    }

    /// The judgement, and what it was made of.
    fn judge(&self, evidence: &Evidence, brought: Brought) -> (Judgement, Asked) {
        let (mut witness, mut asked) = (self.witness(evidence, brought), Asked::default());
        let moments = Regime::of(&self.manifest).begins_with_moments();
        let mut recorder = Recorder::new(&mut witness, &mut asked, moments);
        // The rule's arithmetic is its own; a round may be waiting for this.
        let judgement = if let Evidence::Aggregation(part) = evidence {
            judge_reduction(&self.manifest, part, &mut recorder)
        } else {
            let mut arithmetic = lock(&self.arithmetic);
            judge(&self.manifest, evidence, &mut recorder, &mut **arithmetic)
        };
        (judgement, asked)
    }

    fn witness(&self, evidence: &Evidence, brought: Brought) -> Exhibited {
        Exhibited::new(self.states(evidence), self.dataset.clone(), &self.manifest, brought)
    }
}

fn differ(round: Round, culprit: &MemberId, finding: FindingKind, other: &Judgement) -> Failure {
    let words = finding.words();
    Failure::environment(format!(
        "round {round}: one code path finds {culprit} guilty of a {words}, another one does not ({other:?}): this machine \
         computes wrongly, and nobody is banned; test its memory and processor, or host the run's folder on another machine"
    ))
}

/// The bench of one hearing: what the hearing wants, and what was fetched for it.
struct CourtBench {
    court: Arc<Court>,
    runtime: Handle,
    wants: Wants,
    /// How long the hearing waits for it.
    patience: Duration,
    brought: Brought,
    /// Held while a contribution is in memory.
    permit: Option<OwnedSemaphorePermit>,
}

impl Bench for CourtBench {
    type Failure = Failure;

    fn bring(&mut self, patience: Patience) -> bool {
        let runtime = self.runtime.clone();
        let mut stopped = self.court.stopped.clone();
        let found = runtime.block_on(async {
            tokio::select! {
                found = self.found(patience) => found,
                // A steward that stops must not wait for holders that never answer.
                Ok(_) = stopped.wait_for(|stopped| *stopped) => None,
            }
        });
        self.brought = found.unwrap_or_default();
        !self.brought.contributions.is_empty()
    }

    fn judge(&mut self, evidence: &Evidence) -> Outcome<Judgement> {
        self.court.judge_twice(evidence, &self.brought)
    }

    fn contribution(&self) -> Option<Vec<i32>> {
        self.brought.contributions.values().next()?.whole(&self.court.layout)
    }

    fn keep_inputs(&mut self) -> Outcome<()> {
        let Wants::Part(inputs) = &self.wants else { return Ok(()) };
        let round = inputs.view.round();
        Ok(self.court.exhibit_inputs(round, inputs.part, self.brought.blocks.clone())?)
    }
}

impl CourtBench {
    /// Fetches what is wanted; `None` if it does not come in time.
    async fn found(&mut self, patience: Patience) -> Option<Brought> {
        match self.wants {
            Wants::Nothing => return None,
            // It is never closed; without it, only memory is at stake.
            Wants::Contribution(_) if self.permit.is_none() => {
                self.permit = self.court.hoard.clone().acquire_owned().await.ok();
            }
            // A round may be waiting for it.
            Wants::Contribution(_) | Wants::Part(_) => {}
        }
        let tries = match patience {
            Patience::Soon => 1,
            Patience::Long => TRIES,
        };
        tokio::time::timeout(self.limit(patience), self.tried(tries)).await.ok().flatten()
    }

    fn limit(&self, how_long: Patience) -> Duration {
        // Long only where nothing else can decide; otherwise as long as the bytes take.
        if how_long == Patience::Long {
            return self.patience;
        }
        let layout = &self.court.layout;
        let blocks: Vec<Block> = (0..layout.blocks().len() as u32).map(Block).collect();
        patience(layout, &blocks)
    }

    async fn tried(&self, tries: u32) -> Option<Brought> {
        for left in (0..tries).rev() {
            match self.court.bring(&self.wants).await {
                Ok(found) => return Some(found),
                Err(why) => tracing::debug!("a case wants more: {why}"),
            }
            if left > 0 {
                // A holder that was just started again, or is busy, has it a moment later.
                tokio::time::sleep(PAUSE).await;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use muster_compute::{Backend, Exact, LeafTimes};
    use muster_core::audit::{Witness, recompute_sum};
    use muster_core::codec::List;
    use muster_core::contribution::Commitment;
    use muster_core::ids::{Height, Row, ShardId, Slot};
    use muster_core::manifest::Manifest;
    use muster_core::messages::call::{Answer, Ask, fixed, logits_digest};
    use muster_core::messages::evidence::{FalseAnswer, Total};
    use muster_core::messages::record::{Body, Freeze, Record};
    use muster_core::messages::round::Commit;
    use muster_core::sign::Identity;
    use muster_core::state::{Arithmetic, LeafJob, State, Update};
    use muster_replica::bundle::{Bundle, Sources, seal};
    use muster_replica::exit::Exit;
    use muster_store::bundles::{bundle_in, bundle_path};

    use super::*;
    use crate::retro::tests::{TINY, court};

    /// A processor that computes one coefficient of each leaf wrongly, every time.
    struct Faulty(Exact);

    impl Arithmetic for Faulty {
        fn initial(&mut self, manifest: &Manifest, calibration: &[Vec<u32>]) -> State {
            self.0.initial(manifest, calibration)
        }

        fn leaf(&mut self, manifest: &Manifest, job: &LeafJob<'_>, q: &mut [i32]) -> i64 {
            let loss = self.0.leaf(manifest, job, q);
            q[0] += 1;
            loss
        }

        fn apply(&mut self, manifest: &Manifest, state: &mut State, update: &Update) {
            self.0.apply(manifest, state, update);
        }

        fn evaluate(&mut self, manifest: &Manifest, state: &State, windows: &[Vec<u32>]) -> f64 {
            self.0.evaluate(manifest, state, windows)
        }
    }

    impl Backend for Faulty {
        fn gradient(&mut self, manifest: &Manifest, job: &LeafJob<'_>) -> &[f32] {
            self.0.gradient(manifest, job)
        }

        fn spent(&self) -> LeafTimes {
            self.0.spent()
        }

        fn self_test(&mut self) -> Result<(), muster_core::error::Misuse> {
            Ok(())
        }

        fn describe(&self) -> String {
            "a faulty processor".into()
        }
    }

    /// The contribution of a member to the first round, right or not, said to be wrong.
    fn accused(court: &Court, steward: &Identity, right: bool) -> Evidence {
        let member = Identity::from_secret(&[9; 32]);
        let manifest = &court.manifest;
        let (state, kept) = court.replica.lock().unwrap().snapshot();
        let mut commit = Commit {
            round: Round(0),
            head: Default::default(),
            state,
            slot: Slot(1),
            seats: 2,
            route: None,
            leaves: 2,
            profile: manifest.profile,
            loss: 0,
            root: Default::default(),
        };
        let nothing = Brought::default();
        let mut text = Exhibited::new(Vec::new(), court.dataset.clone(), manifest, nothing);
        let mut exact = Exact::new(1, None).unwrap();
        let mut sum = recompute_sum(manifest, &commit, &kept, &mut text, &mut exact).unwrap();
        sum.q[7] += i32::from(!right);
        (commit.loss, commit.root) = (sum.loss, Commitment::new(&court.layout, &sum.q).root());
        let commits = List::new(vec![member.sign(manifest.run(), &commit)]).unwrap();
        let body = Body::Freeze(Freeze { round: Round(0), state, commits });
        let record = Record { height: Height(3), previous: Default::default(), body };
        let freeze = steward.sign(manifest.run(), &record);
        Evidence::Total(Total { freeze, culprit: member.id() })
    }

    async fn heard(court: Court, evidence: Evidence) -> Outcome<Judgement> {
        let (admit, withheld, expelled) = (None, false, false);
        let (run, exact) = (court.manifest.run(), court.is_exact());
        let matter = Matter { evidence, run, exact, admit, withheld, expelled };
        Ok(Arc::new(court).hear(matter, Wants::Nothing, Duration::ZERO).await?.judgement)
    }

    /// AUDIT-30: everything that this judge has looked at is in the bundle, and nothing else passes for it.
    fn bundled(evidence: &Evidence, contents: &[u8]) {
        let whole = Bundle::open(contents).unwrap();
        assert_eq!(whole.evidence, *evidence);
        let (root, state) = whole.state.unwrap();
        assert_eq!(Some(root), evidence.state(whole.manifest.run()).map(|(_, root)| root));
        assert!(state.first.is_empty() && !state.parameters.is_empty(), "moments are not looked at");
        for place in (0..contents.len()).step_by(97) {
            let mut changed = contents.to_vec();
            changed[place] ^= 1 << (place % 8);
            let Ok(changed) = Bundle::open(&changed) else { continue };
            // What is signed, or has the run's id as its hash, a judge refuses; a state with other roots is not the one it looks for.
            let other = changed.state.is_none_or(|(found, _)| found != root);
            let same = changed.manifest == whole.manifest && changed.evidence == whole.evidence && !other;
            assert!(!same, "byte {place}");
        }
    }

    /// AUDIT-30, LOCAL-1: without the moments with which they begin, honest leaves would look false.
    #[test]
    fn audit_30_moments_with_which_leaves_begin_are_not_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let (court, steward) = court(folder.path(), &format!("{TINY}[local]\nsteps = 4\n"));
        let evidence = accused(&court, &steward, true);
        let states = court.states(&evidence);
        let roots = states[0].shard_roots();
        let (manifest, dataset, journal) = (&*court.manifest, &*court.dataset, &*court.journal);
        for moments in [true, false] {
            let (mut witness, mut asked) = (court.witness(&evidence, Brought::default()), Asked::default());
            Recorder::new(&mut witness, &mut asked, moments)
                .state(&states[0].root(), &[ShardId::TRUNK])
                .unwrap();
            let contents = seal(&evidence, asked, &Sources { manifest, dataset, journal, roots });
            let opened = Bundle::open(&contents).map(|bundle| bundle.state.is_some());
            assert!(if moments { opened == Ok(true) } else { opened.is_err() }, "{moments}: {opened:?}");
        }
    }

    #[tokio::test]
    async fn audit_12_two_code_paths_agree_before_a_ban_for_life() {
        let folder = tempfile::tempdir().unwrap();
        let (good, steward) = court(&folder.path().join("good"), TINY);
        let evidence = accused(&good, &steward, false);
        let path = bundle_path(good.home.path(), &evidence.digest());
        let judgement = heard(good, evidence.clone()).await.unwrap();
        assert!(matches!(judgement, Judgement::Guilty { .. }), "{judgement:?}");
        bundled(&evidence, &bundle_in(&path).unwrap().unwrap());
        let (good, steward) = court(&folder.path().join("right"), TINY);
        let evidence = accused(&good, &steward, true);
        let judgement = heard(good, evidence).await.unwrap();
        assert!(matches!(judgement, Judgement::NotGuilty(_)), "{judgement:?}");
    }

    /// What a member answers to a question by the newest state, right or not.
    fn answered(court: &Court, right: bool) -> Evidence {
        let (manifest, member) = (&court.manifest, Identity::from_secret(&[9; 32]));
        let (root, state) = court.replica.lock().unwrap().snapshot();
        let tokens = List::new(vec![97, 98, 99]).unwrap();
        let ask = Ask { round: Round(0), root, row: Row(0), tokens, positions: 2 };
        let mut exact = Exact::new(1, None).unwrap();
        let logits = exact.logits(manifest, &state, &ask.tokens, 2).unwrap();
        let mut logits: Vec<i32> = logits.into_iter().map(fixed).collect();
        logits[3] += i32::from(!right);
        let ask = member.sign(manifest.run(), &ask);
        let answer = Answer { ask: ask.digest(), logits: logits_digest(&logits) };
        Evidence::Answer(FalseAnswer { answer: member.sign(manifest.run(), &answer), ask })
    }

    #[tokio::test]
    async fn call_7_a_false_answer_is_found_on_two_code_paths_and_a_true_one_is_none() {
        let folder = tempfile::tempdir().unwrap();
        for (name, right) in [("false", false), ("true", true)] {
            let (court, _) = court(&folder.path().join(name), TINY);
            let evidence = answered(&court, right);
            match heard(court, evidence).await.unwrap() {
                Judgement::Guilty { finding: FindingKind::FalseAnswer, .. } if !right => {}
                Judgement::NotGuilty(_) if right => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn audit_12_a_steward_that_computes_wrongly_bans_nobody_and_stops() {
        let folder = tempfile::tempdir().unwrap();
        let (mut faulty, steward) = court(folder.path(), TINY);
        let evidence = accused(&faulty, &steward, true);
        faulty.arithmetic = Arc::new(Mutex::new(Box::new(Faulty(Exact::new(1, None).unwrap()))));
        let failure = heard(faulty, evidence).await.unwrap_err();
        assert_eq!(failure.exit, Exit::Environment);
        assert!(failure.message.contains("computes wrongly, and nobody is banned"), "{failure}");
    }
}
