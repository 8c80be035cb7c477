use std::path::Path;

use muster_core::contribution::Commitment;
use muster_core::manifest::fixture::tiny;

use super::*;

/// Of a model with blocks of several sizes.
fn layout() -> Layout {
    let nobody = MemberId([3; 32]);
    let mut model = tiny(nobody, nobody, 8, 2).model;
    (model.width, model.layers, model.hidden) = (64, 2, 172);
    Layout::of(&model)
}

/// One on a disk of its own.
fn intake(folder: &Path) -> (Intake, Arc<Home>, Arc<Layout>) {
    let layout = Arc::new(layout());
    let home = Arc::new(Home::open(&folder.join("home")).unwrap());
    (Intake::new(layout.clone(), home.clone(), mpsc::channel(1).0), home, layout)
}

/// Some blocks of a contribution.
fn blocks(layout: &Layout, q: &[i32], numbers: &[u32]) -> Blocks {
    let tree = Commitment::new(layout, q);
    let block = |number: &u32| {
        let data = tree.block(layout, q, Block(*number)).unwrap();
        (data.block, Arc::new(data))
    };
    numbers.iter().map(block).collect()
}

#[test]
fn a_whole_part_is_written_once_and_again_only_where_the_disk_did_not_take_it() {
    let folder = tempfile::tempdir().unwrap();
    let (intake, home, layout) = intake(folder.path());
    let (q, sender) = (vec![7; layout.parameters()], MemberId([4; 32]));
    let plan = [1, 2].map(Block);
    let hold = |round, numbers: &[u32]| {
        intake.hold(Round(round), sender, Part(2), &plan, blocks(&layout, &q, numbers)).unwrap()
    };
    let files = |round| home.load_contribution(Round(round), &sender).unwrap().len();
    // ROUND-4: the receipt is due when every block of the part is held, and not before.
    assert!(!hold(5, &[1]));
    assert!(hold(5, &[2]));
    assert_eq!(files(5), 2);
    let contributions = home.path().join("contributions");
    std::fs::remove_dir_all(&contributions).unwrap();
    assert!(hold(5, &[1]), "it has its receipt again");
    assert_eq!(files(5), 0, "what is whole brings nothing new");
    // Another round's, while there is no room for it.
    std::fs::write(&contributions, b"in the way").unwrap();
    assert!(hold(6, &[1, 2]));
    std::fs::remove_file(&contributions).unwrap();
    assert!(hold(6, &[2]));
    assert_eq!(files(6), 2);
}

#[test]
fn a_steward_reads_what_is_on_its_disk_and_holds_none_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let (intake, _, layout) = intake(folder.path());
    let intake = intake.lean();
    let (q, sender) = (vec![7; layout.parameters()], MemberId([4; 32]));
    let tree = Commitment::new(&layout, &q);
    let plan = [1, 2].map(Block);
    let hold =
        |number| intake.hold(Round(5), sender, Part(2), &plan, blocks(&layout, &q, &[number])).unwrap();
    assert!(!hold(1));
    assert_eq!(intake.lock().len(), 1, "what is not whole is nowhere else");
    assert!(hold(2));
    for again in [2, 1] {
        assert!(intake.lock().is_empty());
        let found = intake.block(Round(5), &sender, &tree.root(), Block(1)).unwrap();
        assert_eq!(*found, tree.block(&layout, &q, Block(1)).unwrap());
        assert!(hold(again), "it has its receipt again");
    }
}

#[test]
fn round_4_blocks_of_rounds_long_over_fill_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (intake, _, layout) = intake(folder.path());
    let (q, sender) = (vec![7; layout.parameters()], MemberId([4; 32]));
    let data = Commitment::new(&layout, &q).block(&layout, &q, Block(2)).unwrap();
    let hold = |round| {
        let opened = [(Block(2), Arc::new(data.clone()))].into();
        intake.hold(Round(round), sender, Part(2), &[Block(2)], opened)
    };
    assert_eq!(hold(20), Ok(true));
    // As many old rounds as are remembered, again and again.
    for round in (4..20).chain(4..20) {
        assert_eq!(hold(round).is_ok(), round >= 19, "{round}");
    }
    assert_eq!(intake.lock().len(), 2);
    assert_eq!(hold(21), Ok(true));
    assert_eq!(intake.lock().len(), 2, "the oldest goes");
}

#[test]
fn round_4_a_steward_takes_no_blocks_of_rounds_long_over() {
    let folder = tempfile::tempdir().unwrap();
    let (intake, _, layout) = intake(folder.path());
    let intake = intake.lean();
    let (q, sender) = (vec![7; layout.parameters()], MemberId([4; 32]));
    let plan = [1, 2].map(Block);
    let hold = |round, numbers: &[u32]| {
        intake.hold(Round(round), sender, Part(2), &plan, blocks(&layout, &q, numbers))
    };
    assert_eq!(hold(20, &[1, 2]), Ok(true));
    for round in 4..20 {
        assert_eq!(hold(round, &[1]).is_ok(), round >= 19, "{round}");
    }
    assert_eq!(intake.lock().len(), 1);
}

#[test]
fn others_get_no_more_of_the_disk_than_its_owner_allows() {
    let folder = tempfile::tempdir().unwrap();
    let (intake, home, layout) = intake(folder.path());
    let q = vec![7; layout.parameters()];
    let tree = Commitment::new(&layout, &q);
    let data = tree.block(&layout, &q, Block(2)).unwrap();
    // Room for the blocks of three of them; a run may have any number.
    intake.quota().allow(3 * bytes(&data));
    let opened = || [(Block(2), Arc::new(data.clone()))].into();
    let hold = |name| intake.hold(Round(5), MemberId([name; 32]), Part(2), &[Block(2)], opened());
    for name in 0..3 {
        assert_eq!(hold(name), Ok(true));
        assert_eq!(hold(name), Ok(true), "the same once more takes no room");
    }
    for name in 3..9 {
        hold(name).unwrap_err();
        intake.relay(Round(5), MemberId([name; 32]), &[Block(2)], vec![data.clone()]).unwrap_err();
    }
    let kept =
        (0..9).filter(|name| !home.load_contribution(Round(5), &MemberId([*name; 32])).unwrap().is_empty());
    assert_eq!(kept.collect::<Vec<_>>(), [0, 1, 2]);
    // Old rounds were dropped, or more was allowed: it keeps blocks again.
    intake.quota().allow(u64::MAX);
    assert_eq!(hold(3), Ok(true));
}

#[test]
fn what_others_should_have_taken_is_never_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (intake, home, layout) = intake(folder.path());
    let q = vec![7; layout.parameters()];
    let tree = Commitment::new(&layout, &q);
    let block = |number| tree.block(&layout, &q, Block(number)).unwrap();
    let plan = [1, 2, 4].map(Block);
    // Any number of members leave their parts incomplete, and say the same again and again.
    for name in 0..50 {
        let sender = MemberId([name; 32]);
        for _ in 0..3 {
            // ROUND-4: no receipt for a part that lacks a block, however often the others are brought.
            assert_eq!(intake.relay(Round(5), sender, &plan, vec![block(1), block(2)]), Ok(false));
        }
        let kept = home.load_contribution(Round(5), &sender).unwrap();
        assert_eq!(kept, [block(1), block(2)], "each block once");
    }
    assert!(intake.lock().is_empty());
    // The last block makes a part whole, from whichever piece it comes; then every block can be asked for.
    let sender = MemberId([7; 32]);
    assert_eq!(intake.relay(Round(5), sender, &plan, vec![block(2), block(4)]), Ok(true));
    assert_eq!(intake.relay(Round(5), sender, &plan, vec![block(4)]), Ok(true), "asked once more");
    assert!(plan.iter().all(|b| intake.block(Round(5), &sender, &tree.root(), *b).is_some()));
    assert!(intake.lock().is_empty());
    // Of a round that is over nothing is remembered.
    intake.relay(Round(6), sender, &plan, vec![block(1)]).unwrap();
    assert_eq!(intake.relayed.lock().unwrap().len(), 1);
    // Nobody fills the disk with pieces.
    home.save_contribution(Round(7), &sender, u16::MAX, [block(1)].iter()).unwrap();
    assert!(intake.relay(Round(7), sender, &plan, vec![block(2)]).is_err());
}

#[test]
fn a_restart_writes_nothing_over_what_has_a_receipt() {
    let folder = tempfile::tempdir().unwrap();
    let (before, home, layout) = intake(folder.path());
    let q = vec![7; layout.parameters()];
    let tree = Commitment::new(&layout, &q);
    let block = |number| tree.block(&layout, &q, Block(number)).unwrap();
    let sender = MemberId([4; 32]);
    home.save_contribution(Round(5), &sender, 3, [block(0)].iter()).unwrap();
    assert_eq!(before.relay(Round(5), sender, &[Block(1)], vec![block(1)]), Ok(true));
    let after = Intake::new(layout.clone(), home.clone(), mpsc::channel(1).0);
    assert_eq!(after.relay(Round(5), sender, &[Block(2)], vec![block(2)]), Ok(true));
    assert_eq!(home.load_contribution(Round(5), &sender).unwrap(), [block(0), block(1), block(2)]);
}

#[test]
fn old_rounds_are_read_from_disk_and_do_not_fill_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (intake, home, layout) = intake(folder.path());
    let member = MemberId([3; 32]);
    let q = vec![7; layout.parameters()];
    let tree = Commitment::new(&layout, &q);
    let block = tree.block(&layout, &q, Block(2)).unwrap();
    for round in 0..20 {
        home.save_contribution(Round(round), &member, 0, std::iter::once(&block)).unwrap();
        let found = intake.block(Round(round), &member, &tree.root(), Block(2)).unwrap();
        assert_eq!(*found, block);
        assert!(intake.block(Round(round), &member, &tree.root(), Block(3)).is_none());
    }
    assert!(intake.lock().is_empty());
    assert_eq!(intake.shelf.looked_at(), (8, Some(((Round(19), member), 1))));
}

#[test]
fn commit_5_what_the_disk_gives_is_proved_again() {
    let folder = tempfile::tempdir().unwrap();
    let (intake, home, layout) = intake(folder.path());
    let (q, other) = (vec![7; layout.parameters()], vec![8; layout.parameters()]);
    let (tree, foreign) = (Commitment::new(&layout, &q), Commitment::new(&layout, &other));
    let whole = tree.block(&layout, &q, Block(2)).unwrap();
    let fewer = List::new(whole.chunks[1..].to_vec()).unwrap();
    let lies = [
        BlockData { block: Block(layout.blocks().len() as u32), ..whole.clone() },
        BlockData { block: Block(3), ..whole.clone() },
        BlockData { chunks: fewer, ..whole.clone() },
        BlockData { proofs: List::default(), ..whole.clone() },
        foreign.block(&layout, &other, Block(2)).unwrap(),
    ];
    for (name, data) in (0..).zip(lies.into_iter().chain([whole])) {
        let member = MemberId([name; 32]);
        home.save_contribution(Round(5), &member, 0, std::iter::once(&data)).unwrap();
        let found = intake.block(Round(5), &member, &tree.root(), data.block);
        assert_eq!(found.is_some(), name == 5, "{name}");
    }
}

#[test]
fn what_is_not_there_is_not_looked_for_again_until_something_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (intake, home, layout) = intake(folder.path());
    let (member, other) = (MemberId([3; 32]), MemberId([4; 32]));
    let q = vec![7; layout.parameters()];
    let tree = Commitment::new(&layout, &q);
    let block = |number| tree.block(&layout, &q, Block(number)).unwrap();
    let has = |member, number| intake.block(Round(5), member, &tree.root(), Block(number)).is_some();
    home.save_contribution(Round(5), &member, 0, [block(2)].iter()).unwrap();
    assert!(has(&member, 2));
    // Whoever looked once more would find it.
    home.save_contribution(Round(5), &member, 7, [block(3)].iter()).unwrap();
    for _ in 0..3 {
        assert!(!has(&member, 3), "it was not looked at again");
        assert!(!has(&other, layout.blocks().len() as u32), "of no layout, so of no contribution");
        assert!(has(&member, 2));
    }
    // What is written of another one changes nothing; of this one, it is there.
    intake.shelf.save(Round(5), &other, 0, [block(1)].iter()).unwrap();
    assert!(!has(&member, 3));
    intake.shelf.save(Round(5), &member, 1, [block(4)].iter()).unwrap();
    assert!([2, 3, 4].iter().all(|number| has(&member, *number)), "it was looked at again");
}

#[test]
fn of_more_than_an_answer_holds_no_more_is_looked_at() {
    let layout = layout();
    let q: Vec<i32> = (0..layout.parameters() as i32).map(|index| index * 7919).collect();
    let tree = Commitment::new(&layout, &q);
    let largest = (0..layout.blocks().len()).max_by_key(|block| layout.blocks()[*block].range.len());
    let data = tree.block(&layout, &q, Block(largest.unwrap() as u32)).unwrap();
    let bytes: usize = data.chunks.iter().map(|chunk| chunk.len()).sum();
    let looked = std::cell::Cell::new(0);
    let one = |_| {
        looked.set(looked.get() + 1);
        Some(data.clone())
    };
    assert!(gathered(&vec![data.block; BULK_BYTES / bytes], one).is_ok());
    looked.set(0);
    assert!(gathered(&vec![data.block; 1024], one).is_err());
    assert_eq!(looked.get(), BULK_BYTES / bytes + 1);
    assert!(gathered(&[data.block], |_| None).is_err());
}

/// One member, or several, ask for as many old blocks as they like over as many connections: who reduces a part of the open
/// round waits for nobody, and each contribution is read once.
#[test]
fn round_35_a_flood_of_old_blocks_leaves_what_the_round_waits_for_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let (intake, home, layout) = intake(folder.path());
    let intake = Arc::new(intake);
    let q = vec![7; layout.parameters()];
    let tree = Commitment::new(&layout, &q);
    let member = |name: u8| MemberId([name; 32]);
    for name in 1..4 {
        let block = tree.block(&layout, &q, Block(2)).unwrap();
        home.save_contribution(Round(5), &member(name), 0, [block].iter()).unwrap();
    }
    // Taken for the open round from somebody whose aggregator did not.
    let relayed = tree.block(&layout, &q, Block(1)).unwrap();
    intake.relay(Round(9), member(4), &[Block(1)], vec![relayed.clone()]).unwrap();
    let root = tree.root();
    let ask = |from: u8, round: u32, of: u8, wanted| {
        let blocks = List::new(vec![Block(if of == 4 { 1 } else { 2 })]).unwrap();
        let query = InputQuery { round: Round(round), member: member(of), blocks };
        intake.clone().answer(member(from), query, wanted)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let hangs = intake.shelf.hang();
    let later = Wanted::Later { root };
    let floods: Vec<_> =
        (0..400).map(|n| runtime.spawn(ask(10 + (n % 4) as u8, 5, 1 + (n % 3) as u8, later))).collect();
    runtime.block_on(async {
        while intake.readers.there() > RESERVED {
            tokio::task::yield_now().await;
        }
    });
    let answer = runtime.block_on(ask(20, 9, 4, Wanted::Now { root, most: 1 }));
    assert_eq!(answer, Ok(Response::Blocks(List::new(vec![relayed]).unwrap())));
    assert!(floods.iter().all(|flood| !flood.is_finished()));
    drop(hangs);
    for flood in floods {
        assert!(matches!(runtime.block_on(flood).unwrap(), Ok(Response::Blocks(_))));
    }
    assert_eq!(intake.shelf.looked_at().0, 3, "each was looked at once, and that is still known");
    // The round is over, and nothing of it stays in memory.
    intake.over(Round(9));
    assert!(intake.in_memory(Round(9), &member(4), Block(1)).is_none());
}

#[test]
fn answers_are_read_a_few_at_a_time_beside_who_asks() {
    let folder = tempfile::tempdir().unwrap();
    let (intake, home, layout) = intake(folder.path());
    let (intake, member) = (Arc::new(intake), MemberId([3; 32]));
    let q = vec![7; layout.parameters()];
    let tree = Commitment::new(&layout, &q);
    let block = tree.block(&layout, &q, Block(2)).unwrap();
    home.save_contribution(Round(5), &member, 0, std::iter::once(&block)).unwrap();
    let ask = |name: u8| {
        let query = InputQuery { round: Round(5), member, blocks: List::new(vec![Block(2)]).unwrap() };
        intake.clone().answer(MemberId([name; 32]), query, Wanted::Later { root: tree.root() })
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    // A disk that hangs: the one thread of this runtime goes on.
    let hangs = intake.shelf.hang();
    let asked: Vec<_> = (0..6).map(|name| runtime.spawn(ask(name))).collect();
    runtime.block_on(async {
        while intake.readers.there() > RESERVED {
            tokio::task::yield_now().await;
        }
        asked[0].abort();
        tokio::task::yield_now().await;
    });
    assert_eq!(intake.readers.there(), RESERVED, "it is still being read for nobody");
    assert!(asked[1..].iter().all(|asked| !asked.is_finished()));
    drop(hangs);
    let given = Ok(Response::Blocks(List::new(vec![block]).unwrap()));
    for asked in asked.into_iter().skip(1) {
        assert_eq!(runtime.block_on(asked).unwrap(), given);
    }
}
