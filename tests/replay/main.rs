//! Replay of an archive that is made here: whole, on any number of threads, interrupted after any round, in samples.

mod maker;

use e2e::kept::Kept;
use e2e::processes::evidence_in;
use e2e::programs;
use muster_core::codec::{Bytes, List, encode};
use muster_core::ids::{Block, Digest, MemberId, Part, Round, ShardId};
use muster_core::messages::wire::BlockData;
use muster_core::state::ShardStep;
use muster_replica::archive::{Archive, Plan, Replay, ReplayError, Sample};
use muster_store::home::Home;
use muster_verifier::{Place, ReplayFolder};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use maker::{Maker, identity};

const ROUNDS: u32 = 6;

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
    let values = vec![1.0; maker.ledger.layout().block(Block(0)).expect("the first").range.len()];
    update.put(maker.ledger.layout(), Block(0), &values).expect("the first");
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
    let evidence = evidence_in(&folder)[0].clone();
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
