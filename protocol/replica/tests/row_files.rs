//! Rows of experts on the disk instead of in memory: the same bits, one row at a time.
#![allow(clippy::unwrap_used)] // the helpers, too, are tests

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use muster_core::codec::Real;
use muster_core::ids::{MemberId, Round, Row, ShardId};
use muster_core::layout::Layout;
use muster_core::manifest::fixture::{mixture, tiny};
use muster_core::manifest::{Family, Manifest, Rollback};
use muster_core::messages::offer::{StateQuery, StateVector};
use muster_core::state::{ShardStep, StateRoots, Update, real_bytes};
use muster_replica::memory::Room;
use muster_replica::{Asker, HeldState, Offers, Replica};
use muster_store::dataset::{Dataset, SourceText, pack};
use muster_store::error::StoreError;
use muster_store::home::Home;

const ROWS: u16 = 4;
/// No room for earlier states.
const PAST: Room = Room { state: u64::MAX, past: 0 };
/// No room for any state.
const NONE: Room = Room { state: 0, past: 0 };

/// A folder of this process, removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("muster-rows-{name}-{}", std::process::id())))
    }

    fn row_files(&self) -> usize {
        fs::read_dir(self.0.join("home/rows")).unwrap().count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn manifest(folder: &Path, branch: u32) -> (Arc<Manifest>, Arc<Dataset>) {
    let mut manifest = tiny(MemberId([1; 32]), MemberId([2; 32]), 12, 2);
    mixture(&mut manifest.model, ROWS);
    if let Family::Mixture(mixture) = &mut manifest.model.family {
        mixture.branch = branch;
    }
    let text = || Ok(SourceText { name: "text".into(), bytes: b"to be or not to be ".repeat(64) });
    manifest.data = pack([text()], [text()], &folder.join("corpus"), &mut |_| ()).unwrap();
    manifest.rollback = Rollback { limit: Real::new(0.5).unwrap(), most_rounds: 4, spacing: 4 };
    manifest.retention.states = 3;
    let dataset = Arc::new(Dataset::open(&folder.join("corpus"), &manifest.data).unwrap());
    (Arc::new(manifest), dataset)
}

/// What a round gives these shards.
fn update(layout: &Layout, round: u32, shards: &[ShardId]) -> Update {
    let mut update = Update::empty(layout, shards.iter().copied());
    for block in shards.iter().flat_map(|shard| layout.blocks_of(*shard)).collect::<Vec<_>>() {
        let place = block.index() as u32 + round;
        let values: Vec<f32> = (0..layout.block(block).unwrap().range.len())
            .map(|value| ((value as u32 * 7 + place * 13) % 31) as f32 - 15.0)
            .collect();
        update.put(layout, block, &values).unwrap();
    }
    update
}

/// The shards that take a step: the trunk always, rows by turns.
fn shards(round: u32, rows: u16) -> Vec<ShardId> {
    let takes = |row: &u16| rows == 1 || (round + u32::from(*row)).is_multiple_of(3);
    [ShardId::TRUNK].into_iter().chain((0..rows).filter(takes).map(|row| ShardId::of(Row(row)))).collect()
}

#[test]
fn rows_on_the_disk_have_the_bits_of_rows_in_memory() {
    for branch in [0, 2] {
        let folder = Folder::new(&format!("bits-{branch}"));
        let (manifest, dataset) = manifest(&folder.0, branch);
        let home = Home::open(&folder.0.join("home")).unwrap();
        let genesis = || Replica::genesis(manifest.clone(), dataset.clone(), 1, None).unwrap();
        let (mut memory, mut disk) =
            (genesis(), genesis().with_row_files(home.row_files().unwrap()).unwrap());
        let layout = memory.layout().clone();
        let mut all: Vec<StateRoots> = vec![disk.roots().clone()];
        for round in 0..7 {
            let shards = shards(round, disk.roots().rows());
            let whole = update(&layout, round, &shards);
            // One shard after the other, as from the disk.
            let each = shards.iter().map(|shard| Ok(update(&layout, round, &[*shard])));
            let roots = memory.apply([Ok(&whole)], None).unwrap();
            assert_eq!(disk.apply(each, None).unwrap(), roots, "round {round}");
            assert_eq!(disk.held_state().found_roots(), roots);
            assert!(disk.held().eq(memory.held()));
            for row in (0..roots.rows()).map(Row) {
                let path: Vec<ShardId> = layout.path(row).collect();
                let [own, other] =
                    [&memory, &disk].map(|replica| replica.state_at(&roots.root()).unwrap().shards(&path));
                assert_eq!(own.unwrap().parameters, other.unwrap().parameters, "round {round}, {row:?}");
            }
            assert_eq!(disk.state().shards.len(), if roots.rows() > 1 { 1 } else { 2 }, "round {round}");
            all.push(roots);
        }
        // Four states are kept; a file goes with the last of them that has its row. Two wait to be written over.
        assert!(folder.row_files() <= 4 * usize::from(ROWS) + 2, "{}", folder.row_files());
        for replica in [&mut memory, &mut disk] {
            assert!(replica.rewind(&all[5], Round(7)).unwrap() && replica.roots() == &all[5]);
        }
        let (round, steps) = (7, shards(7, ROWS));
        let whole = || Ok::<_, StoreError>(update(&layout, round, &steps));
        assert_eq!(memory.apply([whole()], None).unwrap(), disk.apply([whole()], None).unwrap());
        drop(disk);
        assert_eq!(folder.row_files(), 0);
    }
}

/// STATE-6: whether a run goes back decides what is kept of an earlier state, and where it lies decides nothing.
#[test]
fn earlier_states_on_the_disk_have_the_bits_of_those_in_memory() {
    for (branch, rewinds) in [(0, true), (2, true), (2, false)] {
        let folder = Folder::new(&format!("past-{branch}-{rewinds}"));
        let (manifest, dataset) = manifest(&folder.0, branch);
        let manifest = if rewinds {
            manifest
        } else {
            Arc::new(Manifest { rollback: Rollback::never(), ..Manifest::clone(&manifest) })
        };
        let home = Home::open(&folder.0.join("home")).unwrap();
        let files = home.row_files().unwrap();
        let genesis = || Replica::genesis(manifest.clone(), dataset.clone(), 1, None).unwrap();
        let mut replicas = [
            genesis(),
            genesis().with_state_files(files.clone(), PAST),
            genesis().with_state_files(files.clone(), NONE),
            genesis().with_row_files(files.clone()).unwrap().with_state_files(files, PAST),
        ];
        let layout = replicas[0].layout().clone();
        let mut all: Vec<StateRoots> = vec![replicas[0].roots().clone()];
        for round in 0..7 {
            let whole = update(&layout, round, &shards(round, replicas[0].roots().rows()));
            let roots = replicas.each_mut().map(|replica| replica.apply([Ok(&whole)], None).unwrap());
            assert!(roots.iter().all(|other| *other == roots[0]), "round {round}");
            all.push(roots[0].clone());
            for before in &all[(round as usize + 1).saturating_sub(3)..] {
                let kept = replicas.each_ref().map(|replica| replica.state_at(&before.root()).unwrap());
                assert!(kept.iter().all(|kept| kept.has_moments() == rewinds));
                for row in (0..before.rows()).map(Row) {
                    let path: Vec<ShardId> = layout.path(row).collect();
                    let [memory, others @ ..] = kept.each_ref().map(|kept| kept.shards(&path).unwrap());
                    assert!(others.iter().all(|other| *other == memory), "round {round}, {row:?}");
                }
                assert!(
                    kept[0].near() == kept[1].near() && kept[0].near() == kept[2].near(),
                    "round {round}"
                );
            }
        }
        // Three of them, with moments or without, and each row of two replicas besides, of one the trunk as well.
        let most =
            (if rewinds { 2 } else { 1 }) * 3 * 3 * (usize::from(ROWS) + 1) + 4 * usize::from(ROWS) + 2;
        assert!(folder.row_files() <= most, "{}", folder.row_files());
        for replica in &mut replicas {
            assert_eq!(replica.rewind(&all[5], Round(7)).unwrap(), rewinds);
            assert!(!rewinds || replica.roots() == &all[5]);
        }
        let last = update(&layout, 7, &shards(7, ROWS));
        let roots = replicas.each_mut().map(|replica| replica.apply([Ok(&last)], None).unwrap());
        assert!(roots.iter().all(|other| *other == roots[0]));
        drop(replicas);
        assert_eq!(folder.row_files(), 0);
    }
}

/// AUDIT-2: a member that fetched a state has those before it still, and is asked about the work that it did on them.
#[test]
fn what_a_replica_had_before_a_fetch_stays_for_audits() {
    let folder = Folder::new("fetched");
    let (manifest, dataset) = manifest(&folder.0, 2);
    let genesis = || Replica::genesis(manifest.clone(), dataset.clone(), 1, None).unwrap();
    let (mut replica, mut ahead) = (genesis(), genesis());
    let layout = replica.layout().clone();
    let first = replica.roots().root();
    for round in 0..2 {
        ahead.apply([Ok(&update(&layout, round, &shards(round, 1)))], None).unwrap();
    }
    // Trunk and row 1; then the same state with row 2.
    let path = |row: u16| layout.path(Row(row)).collect::<Vec<ShardId>>();
    for row in [1, 2] {
        let state = ahead.held_state().select(&path(row), true).unwrap();
        let held = HeldState { state, rows: Default::default(), roots: ahead.roots().clone() };
        replica.replace(held, Round(2)).unwrap();
        assert!(replica.state_at(&first).is_some(), "the state before");
        let newest = replica.state_at(&ahead.roots().root()).unwrap();
        assert!(newest.shards(&path(row)).is_some(), "the shards that were fetched last");
    }
}

#[test]
fn a_state_with_rows_on_the_disk_is_written_read_and_offered() {
    let folder = Folder::new("offer");
    let (manifest, dataset) = manifest(&folder.0, 0);
    let home = Home::open(&folder.0.join("home")).unwrap();
    let genesis = || Replica::genesis(manifest.clone(), dataset.clone(), 1, None).unwrap();
    let files = home.row_files().unwrap();
    let (mut memory, mut disk) = (genesis(), genesis().with_row_files(files.clone()).unwrap());
    let layout = memory.layout().clone();
    let all: Vec<ShardId> = layout.all_shards(ROWS).collect();
    for round in 0..3 {
        let whole = update(&layout, round, &all);
        let steps: Vec<ShardStep> =
            all.iter().map(|shard| ShardStep { shard: *shard, round: Round(round) }).collect();
        home.save_update(&layout, Round(round), &whole, &steps).unwrap();
        let steps = home.load_steps(&layout, Round(round)).unwrap();
        assert_eq!(memory.apply([Ok(&whole)], None).unwrap(), disk.apply(steps, None).unwrap());
    }
    let HeldState { state, rows, roots } = disk.held_state().clone();
    home.save_state_and_rows(Round(3), &state, &rows, &roots).unwrap();
    assert_eq!(home.load_state(Round(3)).unwrap(), (memory.state().clone(), roots.clone()));
    let (state, rows, roots) = home.load_state_and_rows(Round(3), &files, &|id| id.row().is_some()).unwrap();
    let held = HeldState { state, rows, roots };
    let resumed = Replica::resume(manifest.clone(), dataset.clone(), 1, None, held, Round(3)).unwrap();
    let mut resumed = resumed.with_row_files(files.clone()).unwrap();
    let next = update(&layout, 3, &all);
    let offered = Arc::new(Mutex::new(disk));
    let offers = Offers::new(files, offered.clone());
    offers.keep().unwrap();
    let offer = offers.newest().unwrap();
    assert_eq!(offer.round, Round(3));
    for shard in &all {
        let view = memory.state().shard(*shard).unwrap();
        for (vector, values) in
            [StateVector::Parameters, StateVector::First, StateVector::Second].into_iter().zip(view.vectors)
        {
            let root = offer.roots.root();
            let query = StateQuery { round: Round(3), root, shard: *shard, vector, first: 0, count: 1 };
            let piece = offers.piece(Asker::Anybody, &query).unwrap();
            assert_eq!(piece.bytes[..], real_bytes(values)[..], "{shard:?} {vector:?}");
        }
    }
    let expected = memory.apply([Ok(&next)], None).unwrap();
    assert_eq!(resumed.apply([Ok(&next)], None).unwrap(), expected);
    assert_eq!(offered.lock().unwrap().apply([Ok(&next)], None).unwrap(), expected);
}

#[test]
fn a_row_that_the_disk_has_changed_is_not_computed_on() {
    let folder = Folder::new("damaged");
    let (manifest, dataset) = manifest(&folder.0, 0);
    let home = Home::open(&folder.0.join("home")).unwrap();
    let replica = Replica::genesis(manifest, dataset, 1, None).unwrap();
    let files = home.row_files().unwrap();
    let mut replica = replica.with_row_files(files.clone()).unwrap();
    let layout = replica.layout().clone();
    for file in fs::read_dir(folder.0.join("home/rows")).unwrap() {
        let path = file.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        bytes[9] ^= 4;
        fs::write(&path, bytes).unwrap();
    }
    let kept = replica.state_at(&replica.roots().root()).unwrap();
    assert!(kept.shards(&[ShardId::TRUNK]).is_some());
    assert!(kept.shards(&[ShardId::TRUNK, ShardId::of(Row(1))]).is_none());
    let error = replica.apply([Ok(update(&layout, 0, &[ShardId::of(Row(1))]))], None).unwrap_err();
    assert!(error.to_string().contains(".row: is damaged"), "{error}");
    // Half a step is kept for nobody.
    assert!(replica.is_torn());
    let replica = Arc::new(Mutex::new(replica));
    let offers = Offers::new(files, replica);
    offers.keep_now().unwrap();
    assert_eq!(offers.newest(), None);
}

#[test]
fn limit_4_where_neither_disk_nor_memory_takes_an_earlier_state_the_reason_is_said() {
    let folder = Folder::new("full");
    let (manifest, dataset) = manifest(&folder.0, 0);
    let home = Home::open(&folder.0.join("home")).unwrap();
    let genesis = || Replica::genesis(manifest.clone(), dataset.clone(), 1, None).unwrap();
    let files = home.row_files().unwrap();
    let on_disk = || genesis().with_state_files(files.clone(), PAST);
    // A disk that takes nothing.
    fs::remove_dir(folder.0.join("home/rows")).unwrap();
    let update = update(genesis().layout(), 0, &shards(0, ROWS));
    let mut roomy = on_disk().with_memory(|| Some(1 << 40));
    let before = roomy.roots().root();
    roomy.apply([Ok(&update)], None).unwrap();
    assert!(roomy.state_at(&before).unwrap().near().is_some(), "it stays in memory");
    let mut cramped = on_disk().with_memory(|| Some(1 << 20));
    let why = cramped.apply([Ok(&update)], None).unwrap_err().to_string();
    assert!(why.contains(".row: ") && why.contains("and the memory (1 MiB left) has no room"), "{why}");
    assert!(why.contains("retention.states") && !cramped.is_torn(), "{why}");
    // Nothing is lost: the state is what it was, and may be written down.
    assert_eq!(cramped.held_state().found_roots().root(), before);
}

/// The state is one file after the other, which a full disk ends.
#[test]
fn limit_4_a_state_whose_step_the_disk_does_not_take_comes_back_to_the_memory() {
    let folder = Folder::new("back");
    let (manifest, dataset) = manifest(&folder.0, 0);
    let manifest = Arc::new(Manifest {
        model: tiny(MemberId([1; 32]), MemberId([2; 32]), 12, 2).model,
        ..Manifest::clone(&manifest)
    });
    let home = Home::open(&folder.0.join("home")).unwrap();
    let genesis = || Replica::genesis(manifest.clone(), dataset.clone(), 1, None).unwrap();
    // Where a file of its name is already, none is written; those that are there can be read.
    let taken = |number: u64| folder.0.join(format!("home/rows/{number}.row"));
    let next = || {
        let names = fs::read_dir(folder.0.join("home/rows")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        1 + names.map(|name| name.trim_end_matches(".row").parse::<u64>().unwrap()).max().unwrap()
    };
    for takes in [true, false] {
        let (mut memory, disk) = (genesis(), genesis().with_state_files(home.row_files().unwrap(), NONE));
        let mut disk = disk.with_memory(if takes { || Some(1 << 40) } else { || Some(1 << 20) });
        let layout = memory.layout().clone();
        let step = |round| update(&layout, round, &[ShardId::TRUNK]);
        assert_eq!(memory.apply([Ok(&step(0))], None).unwrap(), disk.apply([Ok(&step(0))], None).unwrap());
        assert!(disk.state().shards.is_empty() && folder.row_files() > 0, "all of it is there");
        let before = disk.roots().clone();
        let number = next();
        fs::write(taken(number), b"").unwrap();
        let applied = disk.apply([Ok(&step(1))], None);
        assert!(!disk.is_torn());
        if takes {
            assert_eq!(applied.unwrap(), memory.apply([Ok(&step(1))], None).unwrap());
            assert!(!disk.state().shards.is_empty(), "in memory until the disk takes it");
        } else {
            let why = applied.unwrap_err().to_string();
            assert!(
                why.contains(&format!("{number}.row")) && why.contains("has no room for another state"),
                "{why}"
            );
            assert_eq!(*disk.roots(), before);
            fs::remove_file(taken(number)).unwrap();
            assert_eq!(
                memory.apply([Ok(&step(1))], None).unwrap(),
                disk.apply([Ok(&step(1))], None).unwrap()
            );
        }
        assert_eq!(memory.apply([Ok(&step(2))], None).unwrap(), disk.apply([Ok(&step(2))], None).unwrap());
        assert!(disk.state().shards.is_empty(), "on the disk again");
        assert!(disk.state_at(&before.root()).and_then(|kept| kept.near()).is_some(), "audits have it still");
    }
}
