//! Calls of the model: whatever somebody asks, an honest holder refuses or answers within bounds; and whatever questions and
//! answers somebody puts together as evidence, it convicts nobody but the author of a false answer, and an honest holder
//! never.
#![no_main]

use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use muster_compute::Exact;
use muster_core::audit::{Judgement, Witness, claim, judge};
use muster_core::codec::{List, decode, encode};
use muster_core::contribution::PackedContribution;
use muster_core::ids::{Block, Digest, MemberId, Round, Row, ShardId};
use muster_core::layout::Layout;
use muster_core::ledger::RoundView;
use muster_core::limits;
use muster_core::manifest::Manifest;
use muster_core::messages::audit::FindingKind;
use muster_core::messages::call::{Answer, Ask, fixed, logits_digest, real};
use muster_core::messages::evidence::{Evidence, FalseAnswer};
use muster_core::messages::wire::BlockData;
use muster_core::sign::Signed;
use muster_core::state::{Arithmetic, State};
use muster_fuzz::{RowSettings, manifest, person, window, with_rows};

const HONEST: usize = 0;
/// Signs what the fuzzer wants.
const OTHER: usize = 1;
const ASKER: usize = 2;
/// Rows of the model.
const ROWS: u16 = 2;

#[derive(Arbitrary, Debug)]
enum Act {
    /// A question that the model can be asked, unless the numbers are too large for it.
    Ask {
        row: u8,
        tokens: Vec<u8>,
        positions: u8,
        right: bool,
    },
    /// Whatever the fuzzer writes.
    AskAnything(Ask),
    /// The honest holder has a question, and the other one answers it, falsely if so.
    Answer {
        ask: u8,
        right: bool,
    },
    AnswerAnything(Answer),
    /// A question and an answer are brought as evidence.
    Bring {
        ask: u8,
        answer: u8,
    },
    /// The same with a byte changed.
    BringChanged {
        ask: u8,
        answer: u8,
        at: u16,
        bits: u8,
    },
}

struct Scene {
    manifest: Arc<Manifest>,
    state: State,
    root: Digest,
}

static SCENE: LazyLock<Scene> = LazyLock::new(|| {
    let rows = RowSettings { rows: ROWS, branch: 0, few: 0, held: 0 };
    let manifest = with_rows(&manifest(1, 1), rows);
    let state = Exact::new(1, None).expect("a processor").initial(&manifest, &[window(0)]);
    let root = state.root();
    Scene { manifest, state, root }
});

/// A judge that has the state, and nothing else.
struct StateAlone(&'static Scene);

impl Witness for StateAlone {
    fn state(&mut self, root: &Digest, shards: &[ShardId]) -> Option<State> {
        (*root == self.0.root).then(|| self.0.state.select(shards.iter().copied()))
    }

    fn windows(&mut self, _: &[u64]) -> Option<Vec<Vec<u32>>> {
        None
    }

    fn contribution(&mut self, _: Round, _: &MemberId) -> Option<Arc<PackedContribution>> {
        None
    }

    fn round(&mut self, _: Round) -> Option<RoundView> {
        None
    }

    fn block(&mut self, _: Round, _: &MemberId, _: Block) -> Option<BlockData> {
        None
    }
}

struct Trial {
    scene: &'static Scene,
    exact: Exact,
    asks: Vec<Signed<Ask>>,
    answers: Vec<Signed<Answer>>,
}

impl Trial {
    fn new() -> Self {
        let exact = Exact::new(1, None).expect("a processor");
        Self { scene: &SCENE, exact, asks: Vec::new(), answers: Vec::new() }
    }

    fn act(&mut self, act: Act) -> Option<()> {
        match act {
            Act::Ask { row, tokens, positions, right } => {
                let tokens = tokens.into_iter().take(6).map(u32::from).collect();
                let root = if right { self.scene.root } else { Digest::default() };
                let (row, positions) = (Row(u16::from(row % 4)), u16::from(positions % 8));
                let tokens = List::new(tokens).expect("few");
                self.ask(Ask { round: Round(0), root, row, tokens, positions });
            }
            Act::AskAnything(ask) => self.ask(ask),
            Act::Answer { ask, right } => {
                let signed = pick(&self.asks, ask)?;
                let said = self.true_answer(&signed)?;
                let logits = if right { said.logits } else { Digest::default() };
                self.answers.push(person(OTHER).sign(self.scene.manifest.run(), &Answer { logits, ..said }));
            }
            Act::AnswerAnything(answer) => {
                self.answers.push(person(OTHER).sign(self.scene.manifest.run(), &answer));
            }
            Act::Bring { ask, answer } => self.bring(&self.evidence(ask, answer)?),
            Act::BringChanged { ask, answer, at, bits } => {
                let mut bytes = encode(&self.evidence(ask, answer)?);
                let at = usize::from(at) % bytes.len();
                bytes[at] ^= bits;
                self.bring(&decode(&bytes).ok()?);
            }
        }
        Some(())
    }

    fn evidence(&self, ask: u8, answer: u8) -> Option<Evidence> {
        let (ask, answer) = (pick(&self.asks, ask)?, pick(&self.answers, answer)?);
        Some(Evidence::Answer(FalseAnswer { ask, answer }))
    }

    /// Somebody asks the honest holder, which answers what it can be asked.
    fn ask(&mut self, ask: Ask) {
        let run = self.scene.manifest.run();
        let signed = person(ASKER).sign(run, &ask);
        if let Some(answer) = self.true_answer(&signed) {
            self.answers.push(person(HONEST).sign(run, &answer));
        }
        self.asks.push(signed);
    }

    /// CALL-1, CALL-8: the answer of a holder that has the one state; none where it refuses.
    fn true_answer(&mut self, signed: &Signed<Ask>) -> Option<Answer> {
        let Scene { manifest, state, root } = self.scene;
        let ask = signed.verify(manifest.run()).ok()?;
        ask.check(manifest).ok()?;
        // What it computes is bounded by the model alone.
        assert!(ask.tokens.len() <= manifest.model.sequence as usize && ask.row.0 < ROWS);
        assert!(ask.logits(manifest) <= limits::CALL_LOGITS);
        if ask.root != *root || ask.round != Round(0) {
            return None;
        }
        let path = state.select(Layout::of_run(&manifest).path(ask.row));
        let logits = self.exact.reader(manifest, &path.parameters).last(&ask.tokens, ask.positions.into());
        assert_eq!(logits.len(), ask.logits(manifest));
        let units: Vec<i32> = logits.into_iter().map(fixed).collect();
        assert!(units.iter().all(|units| fixed(real(*units)).abs_diff(*units) <= units.unsigned_abs() >> 23));
        Some(Answer { ask: signed.digest(), logits: logits_digest(&units) })
    }

    /// CALL-5, CALL-6: the evidence is judged, and blames nobody but the author of a false answer.
    fn bring(&mut self, evidence: &Evidence) {
        let manifest = &self.scene.manifest;
        let claimed = claim(manifest, evidence);
        let judged = judge(manifest, evidence, &mut StateAlone(self.scene), &mut self.exact);
        let Evidence::Answer(FalseAnswer { ask, answer }) = evidence else { return };
        if let Ok(claimed) = &claimed {
            assert_eq!(claimed.culprit, answer.claimed_signer(), "nobody else is accused");
        }
        let convicts = match &judged {
            Judgement::Guilty { culprit, finding, .. } => {
                assert_eq!((*culprit, *finding), (answer.claimed_signer(), FindingKind::FalseAnswer));
                assert_eq!(*culprit, person(OTHER).id(), "an honest holder is convicted");
                true
            }
            Judgement::Malformed(_) => {
                assert!(claimed.is_err());
                false
            }
            _ => false,
        };
        // Of a question that an honest holder would have answered, a false answer convicts and a true one does not.
        let (ask, answer) = (ask.clone(), answer.clone());
        let Some(right) = self.true_answer(&ask) else { return };
        let said = answer.verify(manifest.run()).ok().filter(|said| said.ask == right.ask);
        assert_eq!(convicts, said.is_some_and(|said| said.logits != right.logits));
    }
}

fn pick<T: Clone>(of: &[T], place: u8) -> Option<T> {
    of.get(usize::from(place) % of.len().max(1)).cloned()
}

fuzz_target!(|acts: Vec<Act>| {
    let mut trial = Trial::new();
    for act in acts.into_iter().take(16) {
        trial.act(act);
    }
});
