//! Replay of an archive that is made here: whole, on any number of threads, interrupted after any round, in samples.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use e2e::kept::Kept;
use e2e::programs;
use muster_compute::Exact;
use muster_core::codec::{Bytes, List, Text, encode};
use muster_core::contribution::{Commitment, PartDigest};
use muster_core::ids::{Digest, MemberId, Part, Round, ShardId, Slot};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::manifest::Manifest;
use muster_core::manifest::fixture::tiny;
use muster_core::messages::audit::FindingKind;
use muster_core::messages::enrol::{Enrol, Invitation, InvitationSecret, Role};
use muster_core::messages::evidence::{Evidence, Total};
use muster_core::messages::record::{Ban, Body, Freeze, Inputs, Outcome, Record};
use muster_core::messages::round::{Bitmap, Commit, Echo, PartResult};
use muster_core::messages::wire::BlockData;
use muster_core::reduction::{Reduced, SealedInputs, reduce};
use muster_core::sign::{Identity, Signed};
use muster_core::state::{Arithmetic, ShardStep, State, Update};
use muster_replica::archive::{Archive, Plan, Replay, ReplayError, Sample};
use muster_replica::{Crew, HeldState, Replica};
use muster_verifier::{Place, ReplayFolder};

use muster_store::dataset::{Dataset, SourceText as Source, pack};
use muster_store::home::Home;

const ROUNDS: u32 = 6;

fn identity(number: u8) -> Identity {
    Identity::from_secret(&[number; 32])
}

/// The first `slots` slots.
fn first(slots: u16) -> Bitmap {
    let mut bitmap = Bitmap::default();
    (0..slots).for_each(|slot| bitmap.insert(Slot(slot)));
    bitmap
}

/// A run in the making: organiser 1, steward 2, nodes 10 and 11.
struct Maker {
    ledger: Ledger,
    records: Vec<Signed<Record>>,
    state: State,
    arithmetic: Exact,
    crew: Crew,
    home: Home,
}

/// Turns the sign of its first block, and signs for that.
fn turn(reduced: &mut Reduced) {
    reduced.values[0].iter_mut().for_each(|value| *value = 0.0 - *value);
    let digest = PartDigest::default();
    reduced.digest = reduced.values.iter().fold(digest, |digest, values| digest.block(values)).finish();
}

impl Maker {
    fn new(folder: &Path, replicas: u8) -> Self {
        let home = Home::open(folder).expect("a folder");
        let words: String = (0..900).map(|n| format!("word {} of {n}\n", n * n % 97)).collect();
        let text = |words: &str| [Ok(Source { name: "text".into(), bytes: words.as_bytes().to_vec() })];
        let data = pack(text(&words), text(&words[..500]), &folder.join("data"), &mut |_| ()).expect("room");
        let mut manifest = Manifest { data, ..tiny(identity(1).id(), identity(2).id(), ROUNDS, 2) };
        manifest.aggregation.replicas = replicas;
        let manifest = Arc::new(manifest);
        home.write_file("manifest.bin", &manifest.bytes()).expect("room");
        let dataset = Arc::new(Dataset::open(&folder.join("data"), &manifest.data).expect("the text"));
        let replica = Replica::genesis(manifest.clone(), dataset.clone(), 1, None).expect("arithmetic");
        let crew = Crew::new(manifest.clone(), dataset, 1, None).expect("arithmetic");
        let mut maker = Self {
            ledger: Ledger::new(manifest),
            records: Vec::new(),
            state: replica.state().clone(),
            arithmetic: Exact::new(1, None).expect("arithmetic"),
            crew,
            home,
        };
        maker.seal(Body::Open(maker.state.roots()));
        for number in [10, 11] {
            let run = maker.ledger.run();
            let (role, secret) = (Role::Node, InvitationSecret::new([number; 32]));
            let invitation =
                Invitation { role, uses: 1, expires: u64::MAX, key: secret.key(), founder: false };
            let invitation = identity(1).sign(run, &invitation);
            let enrol = Enrol {
                invitation: Some(secret.present(run, invitation, identity(number).id())),
                addresses: List::new(vec![Text::new(format!("node:{number}")).expect("short")]).expect("one"),
                coins: None,
                name: Default::default(),
            };
            maker.seal(Body::Admit(identity(number).sign(run, &enrol)));
        }
        maker.seal(Body::Begin(List::new(maker.ledger.derived_seats()).expect("two")));
        maker
    }

    fn seal(&mut self, body: Body) {
        let signed = identity(2).sign(self.ledger.run(), &self.ledger.record(body));
        self.ledger.apply(&signed).expect("a good record");
        self.records.push(signed);
    }

    fn round(&mut self) {
        self.round_with(None, false);
    }

    /// What both members commit to in this round, and its integers and losses.
    fn commits(&mut self, view: &RoundView) -> (Vec<Commit>, Vec<(Vec<i32>, i64)>) {
        let (profile, layout) = (self.ledger.manifest().profile, self.ledger.layout().clone());
        let seats = view.seats().iter().enumerate();
        let empty = seats.map(|(slot, seat)| Commit {
            round: view.round(),
            head: view.head(),
            state: view.state().root(),
            slot: Slot(slot as u16),
            seats: 2,
            route: None,
            leaves: seat.quota,
            profile,
            loss: 0,
            root: Digest::default(),
        });
        let mut commits: Vec<Commit> = empty.collect();
        let sums = self.crew.sums(
            &HeldState::whole(self.state.clone()),
            &commits.iter().collect::<Vec<_>>(),
            &|| (),
        );
        let sums = sums.expect("a state in memory");
        for (commit, (q, loss)) in commits.iter_mut().zip(&sums) {
            (commit.loss, commit.root) = (*loss, Commitment::new(&layout, q).root());
        }
        (commits, sums)
    }

    /// A round in which all aggregators of a part turn the sign of its first block, if one is named, and the second member
    /// commits to another sum than that of its leaves, if it is a `cheat`: in all parts but the first.
    fn round_with(&mut self, wrong: Option<Part>, cheat: bool) {
        let (run, manifest) = (self.ledger.run(), self.ledger.manifest().clone());
        let layout = self.ledger.layout().clone();
        let view = self.ledger.current().expect("a round").clone();
        let (mut commits, mut sums) = self.commits(&view);
        if cheat {
            commits[1].root = self.flip(&view, &mut sums[1].0);
        }
        let signed = commits.iter().map(|commit| identity(10 + commit.slot.0 as u8).sign(run, commit));
        let commits = List::new(signed.collect()).expect("two");
        self.seal(Body::Freeze(Freeze { round: view.round(), state: view.state().root(), commits }));
        let mut parts = vec![first(2); view.parts().len()];
        if cheat {
            parts[0] = first(1);
        }
        let parts = List::new(parts).expect("few");
        self.seal(Body::Inputs(Inputs { round: view.round(), attempt: 0, parts }));
        let view = self.ledger.current().expect("a round").clone();
        let mut update = Update::empty(&layout, view.open_shards(&layout));
        let (mut results, mut seconds) = (Vec::new(), Vec::new());
        for (part, plan) in (0..).map(Part).zip(view.parts()) {
            let inputs = view.inputs()[part.index()];
            let input = |slot: Slot, block| sums.get(slot.index())?.0.get(layout.block(block)?.range.clone());
            let freeze = view.freeze_digest().expect("frozen");
            let sealed = SealedInputs { freeze, slots: &inputs };
            let mut reduced =
                reduce(&manifest, &layout, &plan.blocks, &sealed, |slot| view.commitment(slot), input)
                    .expect("inputs");
            if wrong == Some(part) {
                turn(&mut reduced);
            }
            for (block, values) in plan.blocks.iter().zip(&reduced.values) {
                update.put(&layout, *block, values).expect("a block");
            }
            let (round, digest) = (view.round(), reduced.digest);
            let result = PartResult { round, part, attempt: 0, freeze, inputs, digest };
            let signers = view.aggregators_in(part, 0);
            let mut signed = signers.map(|slot| identity(10 + slot.0 as u8).sign(run, &result));
            results.push(signed.next());
            seconds.extend(signed);
        }
        self.home
            .save_update(self.ledger.layout(), view.round(), &update, &view.shard_steps())
            .expect("room");
        self.arithmetic.apply(&manifest, &mut self.state, &update);
        let echo = Echo { round: view.round(), freeze: view.freeze_digest().expect("frozen") };
        let echoes = [10, 11].map(|number| identity(number).sign(run, &echo));
        let mut outcome = Outcome {
            round: view.round(),
            results: List::new(results).expect("few"),
            echoes: List::new(echoes.to_vec()).expect("two"),
            state: self.state.roots(),
            seats: List::default(),
            credits: List::default(),
            seconds: List::new(seconds).expect("few"),
            steps: List::new(view.row_steps().to_vec()).expect("few"),
        };
        outcome.seats = List::new(self.ledger.seats_after(&outcome)).expect("two");
        self.seal(Body::Outcome(outcome));
    }

    /// Turns a sum to what the cheat commits to, and keeps the proved blocks of all parts but the first, of which it showed
    /// nothing. Gives the root.
    fn flip(&self, view: &RoundView, q: &mut [i32]) -> Digest {
        q.iter_mut().for_each(|q| *q *= -10);
        let tree = Commitment::new(self.ledger.layout(), q);
        let (layout, cheat) = (self.ledger.layout(), view.member_at(Slot(1)).expect("a seat"));
        for (part, plan) in (0..).map(Part).zip(view.parts()).skip(1) {
            let blocks = plan.blocks.iter().map(|block| tree.block(layout, q, *block).expect("a block"));
            let blocks: Vec<BlockData> = blocks.collect();
            self.home.save_exhibited_blocks(view.round(), &cheat, part, &blocks).expect("room");
        }
        tree.root()
    }

    /// Bans the second member for what it committed to in a round.
    fn ban(&mut self, round: Round) {
        let view = self.ledger.round(round).expect("remembered");
        let culprit = view.member_at(Slot(1)).expect("a seat");
        let total = Total { freeze: view.freeze().expect("frozen").clone(), culprit };
        let evidence = self.home.save_evidence(&Evidence::Total(total)).expect("room");
        let effective = self.ledger.first_round_without();
        let (finding, accuser) = (FindingKind::TotalMismatch, identity(2).id());
        let jury = List::default();
        self.seal(Body::Ban(Ban { culprit, effective, round, finding, evidence, accuser, jury }));
    }

    fn write(&mut self) {
        self.seal(Body::Close(self.state.root()));
        let mut bytes = Vec::new();
        for record in &self.records {
            let record = encode(record);
            bytes.extend((record.len() as u32).to_le_bytes());
            bytes.extend(record);
        }
        self.home.write_file("ledger.bin", &bytes).expect("room");
    }
}

fn to_the_end(mut replay: Replay<'_>) -> Result<Digest, ReplayError> {
    while replay.round(&|| ())?.is_some() {}
    Ok(replay.finish().root)
}

#[test]
fn a_replay_is_the_same_whole_in_pieces_and_in_samples() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path().join("run");
    let mut maker = Maker::new(&folder, 1);
    (0..ROUNDS).for_each(|_| maker.round());
    maker.write();
    let root = maker.state.root();
    let archive = Archive::open(&folder).expect("an archive");
    for threads in 1..4 {
        let plan = Plan { threads, path: None, sample: None };
        let replay = Replay::begin(&archive, &plan).expect("arithmetic");
        assert_eq!(to_the_end(replay).expect("it agrees"), root, "{threads} threads");
    }

    let plan = Plan { threads: 2, path: None, sample: None };
    let mut whole = Replay::begin(&archive, &plan).expect("arithmetic");
    while let Some(round) = whole.round(&|| ()).expect("it agrees") {
        let (progress, kept) = (whole.progress().0, Kept::of(&whole));
        let mut later = Replay::begin(&archive, &plan).expect("arithmetic");
        later.skip(&progress, &kept).expect("what was kept");
        assert_eq!(later.leaves_done(), (u64::from(round.0) + 1) * 4);
        assert_eq!(to_the_end(later).expect("it agrees"), root, "resumed after round {round}");
        let mut changed = kept;
        changed.states.values_mut().for_each(|held| held.state.parameters[0] += 1.0);
        let mut forged = Replay::begin(&archive, &plan).expect("arithmetic");
        forged.skip(&progress, &changed).expect_err("another state");
    }

    let sample = |share| Some(Sample::of(share, [7; 32]).expect("a share"));
    for share in [0.0, 0.5, 1.0] {
        let plan = Plan { threads: 2, path: None, sample: sample(share) };
        let mut replay = Replay::begin(&archive, &plan).expect("arithmetic");
        while replay.round(&|| ()).expect("it agrees").is_some() {}
        let (recomputed, counted) = replay.recomputed();
        assert_eq!(counted, u64::from(ROUNDS) * 2);
        let expected =
            if share == 0.5 { 1..counted } else { (counted * share as u64)..(counted * share as u64 + 1) };
        assert!(expected.contains(&recomputed), "{recomputed} of {counted} at {share}");
        assert_eq!(replay.finish().root, root);
    }
    // An aggregate that is not the sealed one is found out, one that is missing is asked for.
    let plan = Plan { threads: 1, path: None, sample: sample(0.0) };
    let mut update = maker.home.load_update(maker.ledger.layout(), Round(3)).expect("kept");
    update.values[0] += 1.0;
    let steps = [ShardStep { shard: ShardId::TRUNK, round: Round(3) }];
    maker.home.save_update(maker.ledger.layout(), Round(3), &update, &steps).expect("room");
    let wrong =
        to_the_end(Replay::begin(&archive, &plan).expect("arithmetic")).expect_err("another aggregate");
    assert!(wrong.to_string().contains("round 3, part"), "{wrong}");
    maker.home.prune_updates(&|round| round != Round(2)).expect("a folder");
    let wrong = to_the_end(Replay::begin(&archive, &plan).expect("arithmetic")).expect_err("no aggregate");
    assert!(wrong.to_string().contains("--keep-aggregates"), "{wrong}");
}

#[test]
fn a_replay_names_a_wrong_part_its_blocks_and_who_signed_it() {
    for replicas in [1, 2] {
        let place = tempfile::tempdir().expect("a folder");
        let folder = place.path().join("run");
        let mut maker = Maker::new(&folder, replicas);
        let part = Part(1);
        maker.round();
        let plan = maker.ledger.current().expect("a round").parts()[part.index()].clone();
        maker.round_with(Some(part), false);
        let view = maker.ledger.round(Round(1)).expect("kept").clone();
        let signers: Vec<MemberId> = view.signers(part).collect();
        assert_eq!(signers.len(), usize::from(replicas));
        (2..ROUNDS).for_each(|_| maker.round());
        maker.write();
        let archive = Archive::open(&folder).expect("an archive");
        let plan_of_replay = Plan { threads: 1, path: None, sample: None };
        let replay = || {
            let replay = Replay::begin(&archive, &plan_of_replay).expect("arithmetic");
            to_the_end(replay).expect_err("a wrong part").to_string()
        };
        let said = replay();
        assert!(said.contains("round 1, part 1: the sealed result is not what the rule gives"), "{said}");
        assert!(said.contains(&format!("wrong are the blocks {}. It", plan.blocks[0])), "{said}");
        let signed: Vec<String> = signers.iter().map(|signer| format!("{signer:#}")).collect();
        assert!(
            said.contains(&format!("signed by {}: an aggregation mismatch", signed.join(" and by "))),
            "{said}"
        );
        // Nobody else is named: not the other aggregator, where the part had one.
        let innocent =
            [10, 11].map(|number| identity(number).id()).into_iter().filter(|id| !signers.contains(id));
        innocent.for_each(|id| assert!(!said.contains(&format!("{id}")), "{said}"));
        // Without the aggregate it still names part and signers.
        maker.home.prune_updates(&|round| round != Round(1)).expect("a folder");
        let said = replay();
        assert!(said.contains("which blocks are wrong only the aggregate would show"), "{said}");
        assert!(signed.iter().all(|signer| said.contains(signer)), "{said}");
    }
}

/// AUDIT-24: of a convict's contribution the archive has the blocks that counted, and each proves itself.
#[test]
fn audit_24_a_replay_opens_a_convict_s_exhibits_block_by_block() {
    const BAD: Round = Round(1);
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path().join("run");
    let mut maker = Maker::new(&folder, 1);
    maker.round();
    let view = maker.ledger.current().expect("a round").clone();
    assert!(view.parts().len() > 1, "one part is kept back");
    maker.round_with(None, true);
    (2..ROUNDS).for_each(|_| maker.round());
    maker.ban(BAD);
    maker.write();
    let archive = Archive::open(&folder).expect("an archive");
    let plan = Plan { threads: 1, path: None, sample: None };
    let replay = || to_the_end(Replay::begin(&archive, &plan).expect("arithmetic"));
    assert_eq!(replay().expect("it agrees"), maker.state.root());

    let (part, cheat) = (Part(1), identity(11).id());
    let kept = muster_store::reading::exhibited_blocks(&folder, maker.ledger.layout(), BAD, &cheat, part);
    let kept = kept.expect("readable").expect("kept");
    let refused = |blocks: &[BlockData], word: &str| {
        maker.home.save_exhibited_blocks(BAD, &cheat, part, blocks).expect("room");
        let said = replay().expect_err("another block").to_string();
        assert!(said.contains(&format!("round 1: block {} of the convict {cheat}", kept[0].block)), "{said}");
        assert!(said.contains(word), "{said}");
    };
    let mut other = kept.clone();
    let mut chunks: Vec<Vec<u8>> = other[0].chunks.iter().map(|chunk| chunk.to_vec()).collect();
    *chunks[0].last_mut().expect("bytes") ^= 1;
    let chunks = chunks.into_iter().map(|chunk| Bytes::new(chunk).expect("as long"));
    other[0].chunks = List::new(chunks.collect()).expect("as many");
    refused(&other, "is not what it committed to");
    refused(&kept[1..], "is missing in exhibits/");
    maker.home.save_exhibited_blocks(BAD, &cheat, part, &kept).expect("room");
    assert_eq!(replay().expect("it agrees again"), maker.state.root());
}

/// A run in which a convict's false contribution counted in round 1; its archive has evidence and exhibits.
fn convicted(folder: &Path) -> Maker {
    let mut maker = Maker::new(folder, 1);
    maker.round();
    maker.round_with(None, true);
    (2..ROUNDS).for_each(|_| maker.round());
    maker.ban(Round(1));
    maker.write();
    maker
}

/// An auditor's machine: its programs keep what they keep under this folder.
struct Auditor(PathBuf);

impl Auditor {
    /// Exit code and output of `muster-verifier replay`.
    fn replay(&self, archive: &Path, more: &[&str]) -> (i32, String) {
        let mut command = Command::new(programs!().verifier);
        command.arg("replay").arg(archive).args(more).env("XDG_STATE_HOME", &self.0).stdin(Stdio::null());
        let output = command.output().expect("a program");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
    }

    /// Exit code and output of a command that has 4 GB of address space and half a minute.
    #[cfg(target_os = "linux")]
    fn bounded(&self, arguments: &[&str]) -> (i32, String) {
        let mut command = Command::new("sh");
        let line = "ulimit -v 4000000; exec timeout 30 \"$0\" \"$@\" --threads 1";
        command.args(["-c", line, programs!().verifier]).args(arguments);
        let output = command.env("XDG_STATE_HOME", &self.0).stdin(Stdio::null()).output().expect("a shell");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
    }

    fn place(&self) -> Result<Place, String> {
        Place::at(&self.0.join("muster/replay"))
    }
}

/// Re-executes all rounds, and keeps in this folder how far it came before the last record, the ban.
fn stopped(archive: &Archive, folder: &ReplayFolder) {
    let plan = Plan { threads: 2, path: None, sample: None };
    let mut replay = Replay::begin(archive, &plan).expect("arithmetic");
    (0..ROUNDS).for_each(|_| assert!(replay.round(&|| ()).expect("a good archive").is_some()));
    folder.write(&replay).expect("room");
}

#[test]
fn a_progress_folder_that_comes_with_an_archive_confirms_nothing() {
    let place = tempfile::tempdir().expect("a folder");
    let (folder, beside) = (place.path().join("run"), place.path().join("run.replay"));
    convicted(&folder);
    let archive = Archive::open(&folder).expect("an archive");
    let auditor = Auditor(place.path().join("auditor"));
    // The organiser's replay, bare as an earlier version wrote it and sealed with the organiser's key.
    let plan = Plan { threads: 2, path: None, sample: None };
    let mut replay = Replay::begin(&archive, &plan).expect("arithmetic");
    (0..ROUNDS).for_each(|_| assert!(replay.round(&|| ()).expect("a good archive").is_some()));
    let home = Home::open(&beside).expect("a folder");
    let (progress, states) = replay.progress();
    states.for_each(|(round, held)| {
        home.save_state_and_rows(round, &held.state, &held.rows, &held.roots).expect("room");
    });
    home.write_sealed("progress", &encode(&progress)).expect("room");
    drop(home);
    let organiser = Place::at(&place.path().join("organiser"));
    let sealed = place.path().join("sealed");
    stopped(&archive, &ReplayFolder::open(&archive, organiser, Some(&sealed)).expect("room").expect("one"));

    assert_eq!(auditor.replay(&folder, &[]).0, 0, "with its evidence it agrees");
    fs::remove_dir_all(folder.join("evidence")).expect("a folder");
    fs::remove_dir_all(folder.join("exhibits")).expect("a folder");
    let refused = |more: &[&str]| {
        let (code, output) = auditor.replay(&folder, more);
        assert!(code == 1 && !output.contains("every record"), "{code}: {output}");
        output
    };
    refused(&[]);
    for shipped in [&beside, &sealed] {
        let output = refused(&["--work", &shipped.to_string_lossy()]);
        assert!(output.contains("no earlier replay of yours on this machine sealed it"), "{output}");
    }
    // Neither is a link beside it followed, nor anything written where it leads.
    let elsewhere = place.path().join("elsewhere");
    fs::remove_dir_all(&beside).expect("a folder");
    fs::create_dir(&elsewhere).expect("a folder");
    #[cfg(unix)]
    std::os::unix::fs::symlink(&elsewhere, &beside).expect("a link");
    refused(&[]);
    assert_eq!(fs::read_dir(&elsewhere).expect("a folder").count(), 0);
}

#[test]
fn an_auditor_goes_on_from_its_own_progress_and_says_what_it_did_not_check_again() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path().join("run");
    let root = convicted(&folder).state.root();
    let archive = Archive::open(&folder).expect("an archive");
    let auditor = Auditor(place.path().join("auditor"));
    let keep = || {
        let own = ReplayFolder::open(&archive, auditor.place(), None).expect("room").expect("one");
        stopped(&archive, &own);
    };
    keep();
    let report = place.path().join("report");
    let (code, output) = auditor.replay(&folder, &["--report", &report.to_string_lossy()]);
    assert!(code == 0 && output.contains(&format!("final state {root:#}")), "{code}: {output}");
    assert!(
        output.contains("the 6 rounds before round 6, and 0 of the bans, were checked by an earlier replay")
    );
    let report = fs::read_to_string(report.join("report.json")).expect("a report");
    assert!(report.contains("\"earlier_rounds\": 6"), "{report}");
    // A whole one says nothing of the kind.
    let (code, output) = auditor.replay(&folder, &[]);
    assert!(code == 0 && !output.contains("earlier replay"), "{code}: {output}");
    // What an earlier key sealed is not this auditor's, and --fresh takes nothing from anybody.
    keep();
    let (code, output) = auditor.replay(&folder, &["--fresh"]);
    assert!(code == 0 && !output.contains("earlier replay"), "{code}: {output}");
    keep();
    fs::remove_file(auditor.0.join("muster/replay/key")).expect("a key");
    let (code, output) = auditor.replay(&folder, &[]);
    assert!(code == 0 && output.contains("is not used"), "{code}: {output}");
    assert!(!output.contains("were checked by an earlier replay"), "{output}");
    // The evidence of a ban is looked for whatever was kept.
    keep();
    fs::remove_dir_all(folder.join("evidence")).expect("a folder");
    let (code, output) = auditor.replay(&folder, &[]);
    assert!(code == 1 && output.contains("the evidence"), "{code}: {output}");
}

/// Puts a hole of 6 GiB, a named pipe and a device in a file's place, one after the other.
#[cfg(target_os = "linux")]
fn each_trap(path: &Path, mut test: impl FnMut(&str)) {
    let remove = || fs::remove_file(path).expect("a file");
    remove();
    fs::File::create(path).expect("a file").set_len(6 << 30).expect("a file system with holes");
    test("a hole");
    remove();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
    test("a named pipe");
    remove();
    std::os::unix::fs::symlink("/dev/zero", path).expect("a link");
    test("a device");
}

#[cfg(target_os = "linux")]
#[test]
fn a_stranger_s_files_keep_nobody_waiting_and_take_no_memory() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path().join("run");
    convicted(&folder);
    let auditor = Auditor(place.path().join("auditor"));
    let evidence = fs::read_dir(folder.join("evidence")).expect("a folder").next().expect("evidence");
    let evidence = evidence.expect("an entry").path();
    let whole = fs::read(&evidence).expect("evidence");
    each_trap(&evidence, |trap| {
        for arguments in [["check", &evidence.to_string_lossy()], ["replay", &folder.to_string_lossy()]] {
            let (code, output) = auditor.bounded(&arguments);
            let told = if trap == "a hole" { "a file of this kind has at most" } else { trap };
            assert!(code == 3 && output.contains(told), "{arguments:?}, {trap}: {code} {output}");
        }
    });
    fs::remove_file(&evidence).expect("a link");
    fs::write(&evidence, whole).expect("a file");
    each_trap(&folder.join("ledger.bin"), |trap| {
        let (code, output) = auditor.bounded(&["replay", &folder.to_string_lossy()]);
        let (expected, told) = if trap == "a hole" { (1, "ledger.bin at byte 0") } else { (3, trap) };
        assert!(code == expected && output.contains(told), "{trap}: {code} {output}");
    });
}
