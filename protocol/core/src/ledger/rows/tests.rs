use super::*;
use crate::codec::{List, Real};
use crate::ids::{Part, Round, RowSet, Slot};
use crate::ledger::Ledger;
use crate::ledger::fixture::chain::{Chain, manifest, node, slots, steward, verifier, with_rows};
use crate::manifest::{Family, Manifest, Rollback};
use crate::messages::audit::{FindingKind, Jury};
use crate::messages::enrol::{Leave, Role};
use crate::messages::record::{Ban, Body, Rewind};
use crate::messages::round::Commit;
use crate::messages::round::Route;
use crate::sign::Identity;

/// Four nodes that may come to have so many rows after `branch` updates, in a run that goes back.
fn four(rows: u16, branch: u32) -> Manifest {
    let mut manifest = with_rows(manifest(4), rows, branch);
    let limit = Real::new(0.5).unwrap();
    manifest.rollback = Rollback { limit, most_rounds: 2, spacing: 3 };
    manifest
}

/// These nodes in the first round.
fn begun(rows: u16, branch: u32) -> Chain {
    Chain::begin_with(four(rows, branch))
}

/// The same one round later, with a fifth node, for which a row was drawn by then.
fn with_newcomer(rows: u16) -> Chain {
    let mut chain = begun(rows, 0);
    chain.admit_node(4, false);
    chain.finish_round();
    chain
}

fn takes(chain: &Chain, body: Body) -> bool {
    chain.refusal(body).is_none()
}

fn holding(chain: &Chain, number: u8) -> Option<Holding> {
    chain.ledger.member(&node(number).id()).unwrap().holding
}

/// The rows of these nodes' seats; none of a node without a seat.
fn seated(chain: &Chain, nodes: u8) -> Vec<Option<Row>> {
    let view = chain.ledger.current().unwrap();
    (0..nodes).map(|number| view.slot_of(&node(number).id()).map(|slot| view.row_of(slot))).collect()
}

fn begin(chain: &mut Chain) {
    chain.seal(Body::Begin(List::new(chain.ledger.derived_seats()).unwrap()));
}

fn ready(chain: &Chain, number: u8) -> Ready {
    let row = holding(chain, number).map(|holding| holding.row).unwrap_or_default();
    Ready { round: chain.ledger.next_round(), row, root: chain.ledger.state().root() }
}

fn say(chain: &Chain, by: &Identity, ready: &Ready) -> Body {
    Body::Ready(by.sign(chain.ledger.run(), ready))
}

fn leave(chain: &mut Chain, number: u8) {
    let leave = Leave { height: chain.ledger.height() };
    chain.seal(Body::Leave(node(number).sign(chain.ledger.run(), &leave)));
}

fn ban(chain: &mut Chain, number: u8, round: Round) -> Digest {
    let evidence = Digest([4; 32]);
    chain.seal(Body::Ban(Ban {
        culprit: node(number).id(),
        effective: chain.ledger.first_round_without(),
        round,
        finding: FindingKind::LeafMismatch,
        evidence,
        accuser: steward().id(),
        jury: Jury::default(),
    }));
    evidence
}

/// Bans a node, and goes back to before the round before for it.
fn go_back(chain: &mut Chain) {
    let to = Round(chain.ledger.next_round().0 - 1);
    let evidence = ban(chain, 3, to);
    let state = chain.ledger.state_before(to).unwrap().clone();
    chain.seal(Body::Rewind(Rewind { to, state, evidence }));
    assert_eq!(chain.ledger.stage(), Stage::Gathering);
}

#[test]
fn ledger_4_a_run_opens_with_every_shard_that_it_begins_with() {
    for (branch, right) in [(0, 4), (1, 2)] {
        let opened = Chain::open(four(3, branch));
        let shard = opened.ledger.state().shards[0];
        let empty = Chain { ledger: Ledger::new(four(3, branch).into()) };
        for count in 1..6 {
            let state: StateRoots = std::iter::repeat_n(shard, count).collect();
            assert_eq!(takes(&empty, Body::Open(state)), count == right, "{count} of {right}");
        }
        let mut late = opened.ledger.state().shards.to_vec();
        late[1].step = 1;
        assert!(!takes(&empty, Body::Open(late.into_iter().collect())), "a row after an update");
    }
}

#[test]
fn row_1_the_record_that_opens_a_round_on_several_rows_deals_them_by_the_head_before() {
    let ids = || (0..4).map(|number| node(number).id());
    let rows = |dealt: &BTreeMap<MemberId, Row>| ids().map(|id| dealt.get(&id).copied()).collect::<Vec<_>>();

    let mut chain = Chain::open(four(3, 0));
    (0..4).for_each(|number| chain.admit_node(number, false));
    let by_begin = rows(&deal_rows(&chain.ledger.head(), ids(), 3));
    begin(&mut chain);
    assert_eq!(seated(&chain, 4), by_begin);
    let held = [0, 1, 2, 3].map(|number| holding(&chain, number).unwrap());
    assert!(held.iter().all(|holding| holding.ready), "all held all rows");
    assert_eq!(held.map(|holding| Some(holding.row)).to_vec(), by_begin);
    chain.finish_round();
    assert_eq!(seated(&chain, 4), by_begin, "rows are dealt once");

    // Where rows come to be later, the first Outcome that makes them deals them: to all who have not gone.
    let mut chain = begun(3, 1);
    assert_eq!((seated(&chain, 4), holding(&chain, 0)), (vec![Some(Row(0)); 4], None));
    leave(&mut chain, 3);
    chain.freeze([0, 1]);
    chain.seal(chain.inputs(0, chain.parts().map(|_| slots([0, 1])).collect()));
    let dealt = deal_rows(&chain.ledger.head(), ids().take(3), 3);
    chain.seal(Body::Outcome(chain.outcome()));
    let here = [Some(dealt[&node(0).id()]), Some(dealt[&node(1).id()]), None, None];
    assert_eq!(seated(&chain, 4), here);
    let away = Holding { row: dealt[&node(2).id()], ready: true, since: Round(1) };
    assert_eq!((holding(&chain, 2), holding(&chain, 3)), (Some(away), None));
}

#[test]
fn row_1_an_outcome_that_opens_no_round_deals_nothing() {
    let mut chain = Chain::open(with_rows(manifest(1), 2, 1));
    chain.admit_node(0, false);
    begin(&mut chain);
    chain.freeze([0]);
    chain.seal(chain.inputs(0, chain.parts().map(|_| slots([0])).collect()));
    // LEDGER-20: its only node reduces nothing, and is away.
    let mut outcome = chain.outcome();
    outcome.results = List::new(vec![None; outcome.results.len()]).unwrap();
    outcome.seats = List::new(chain.ledger.seats_after(&outcome)).unwrap();
    chain.seal(Body::Outcome(outcome));
    assert_eq!((chain.ledger.stage(), chain.ledger.rows()), (Stage::Gathering, 2));
    assert!(!chain.ledger.has_dealt_rows());
    chain.admit_node(1, false);
    let dealt = deal_rows(&chain.ledger.head(), [0, 1].map(|number| node(number).id()), 2);
    begin(&mut chain);
    assert_eq!(seated(&chain, 2), [None, Some(dealt[&node(1).id()])]);
    assert_eq!(holding(&chain, 0).unwrap().row, dealt[&node(0).id()]);
}

#[test]
fn row_2_a_row_is_drawn_for_a_newcomer_by_the_head_after_a_later_record() {
    let mut chain = begun(3, 0);
    chain.admit_node(4, false);
    assert_eq!(holding(&chain, 4), None, "nothing is drawn amid a round");
    chain.finish_round();
    let nodes: Vec<_> = (0..5).map(node).map(|node| node.id()).collect();
    let held = |chain: &Chain, from: u8| -> Vec<_> {
        let row = |number| holding(chain, number).filter(|_| number < from).map(|holding| holding.row);
        (0..5).map(|number| (nodes[usize::from(number)], row(number))).collect()
    };
    let drawn = draw_rows(&chain.ledger.head(), &held(&chain, 4), 3);
    assert_eq!(drawn, [(node(4).id(), holding(&chain, 4).unwrap().row)]);
    assert!(!holding(&chain, 4).unwrap().ready);

    // While the run gathers, each record draws; nobody else keeps the row of one that has gone.
    let mut chain = begun(3, 0);
    chain.finish_round();
    go_back(&mut chain);
    leave(&mut chain, 2);
    chain.admit_node(4, false);
    let mut held = held(&chain, 4);
    held.retain(|(id, _)| ![2, 3].map(|gone| node(gone).id()).contains(id));
    let drawn = draw_rows(&chain.ledger.head(), &held, 3);
    assert_eq!(drawn, [(node(4).id(), holding(&chain, 4).unwrap().row)]);
}

#[test]
fn row_3_a_node_is_ready_once_for_its_own_row_with_a_sealed_state() {
    let mut chain = with_newcomer(3);
    let good = ready(&chain, 4);
    assert!(takes(&chain, say(&chain, &node(4), &good)));
    let before = chain.ledger.round(Round(0)).unwrap().state().root();
    let earlier = Ready { round: Round(0), root: before, ..good.clone() };
    let mut later = chain.clone();
    later.finish_round();
    assert!(takes(&later, say(&later, &node(4), &good)), "a state of a round that is remembered");
    let wrong = [
        (earlier, "a round before the row was drawn: an old word, said again"),
        (Ready { row: Row((good.row.0 + 1) % 3), ..good.clone() }, "another row"),
        (Ready { root: Digest([1; 32]), ..good.clone() }, "a state that was not sealed"),
        (Ready { root: before, ..good.clone() }, "the state of another round"),
        (Ready { round: good.round.next(), ..good.clone() }, "a round to come"),
    ];
    for (wrong, what) in wrong {
        assert!(!takes(&chain, say(&chain, &node(4), &wrong)), "{what}");
    }
    assert!(!takes(&chain, say(&chain, &node(9), &good)), "a stranger");
    assert!(!takes(&chain, say(&chain, &verifier(0), &good)), "a verifier");
    assert!(!takes(&chain, say(&chain, &node(0), &ready(&chain, 0))), "rows were dealt to it");
    let mut early = begun(3, 0);
    early.admit_node(4, false);
    assert!(!takes(&early, say(&early, &node(4), &ready(&early, 4))), "no row was drawn yet");
    let mut gone = chain.clone();
    leave(&mut gone, 4);
    assert!(!takes(&gone, say(&gone, &node(4), &good)), "whoever has left");
    let mut banned = chain.clone();
    ban(&mut banned, 4, Round(0));
    assert!(!takes(&banned, say(&banned, &node(4), &good)), "whoever is banned");
    chain.seal(say(&chain, &node(4), &good));
    assert!(!takes(&chain, say(&chain, &node(4), &good)), "twice");
}

#[test]
fn row_3_nobody_is_ready_for_a_run_that_is_over() {
    let mut chain = with_newcomer(3);
    while chain.ledger.stage() != Stage::Auditing {
        chain.finish_round();
    }
    assert!(takes(&chain, say(&chain, &node(4), &ready(&chain, 4))));
    chain.seal(Body::Close(chain.ledger.state().root()));
    assert!(!takes(&chain, say(&chain, &node(4), &ready(&chain, 4))));
}

#[test]
fn ledger_23_whoever_is_ready_holds_its_row_and_has_a_seat_from_then_on() {
    let mut chain = with_newcomer(3);
    assert_eq!(seated(&chain, 5)[4], None, "it fetches its row");
    chain.finish_round();
    assert_eq!(seated(&chain, 5)[4], None, "it still does");
    let ready = ready(&chain, 4);
    chain.seal(say(&chain, &node(4), &ready));
    assert_eq!(holding(&chain, 4), Some(Holding { row: ready.row, ready: true, since: Round(1) }));
    chain.finish_round();
    assert_eq!(seated(&chain, 5)[4], Some(ready.row));
}

#[test]
fn ledger_6_a_round_has_seats() {
    // Nobody is asked for, and nobody is there.
    let empty = Chain::open(manifest(0));
    assert!(empty.ledger.ready());
    assert!(!takes(&empty, Body::Begin(List::default())));
    // Whoever is there still fetches its row.
    let mut chain = with_newcomer(3);
    go_back(&mut chain);
    (0..3).for_each(|number| leave(&mut chain, number));
    assert_eq!((chain.ledger.turnout(Role::Node).here, chain.ledger.derived_seats()), (0, Vec::new()));
    assert!(!takes(&chain, Body::Begin(List::default())));
    chain.seal(say(&chain, &node(4), &ready(&chain, 4)));
    begin(&mut chain);
    assert_eq!(seated(&chain, 5)[4], holding(&chain, 4).map(|holding| holding.row));
}

/// Whether the ledger takes an Outcome with another state.
fn outcome_takes(chain: &Chain, change: impl Fn(&mut Vec<ShardRoots>)) -> bool {
    let mut outcome = chain.outcome();
    let mut shards = outcome.state.shards.to_vec();
    change(&mut shards);
    outcome.state = shards.into_iter().collect();
    takes(chain, Body::Outcome(outcome))
}

fn reducing(rows: u16, branch: u32) -> Chain {
    let mut chain = begun(rows, branch);
    chain.freeze(0..4);
    let view = chain.ledger.current().unwrap().clone();
    let of = |part| slots((0..4).filter(|slot| view.computes_on(Slot(*slot), part)));
    chain.seal(chain.inputs(0, chain.parts().map(of).collect()));
    chain
}

#[test]
fn state_9_the_roots_of_a_closed_row_stay_and_all_others_take_a_step() {
    // Of five rows that are dealt to four nodes, the last one is closed.
    let chain = reducing(5, 0);
    let changed = |shard: usize, change: fn(&mut ShardRoots)| {
        outcome_takes(&chain, |shards| change(&mut shards[shard]))
    };
    assert!(changed(5, |_| {}));
    assert!(!changed(5, |shard| shard.step += 1), "a step of a row without a seat");
    assert!(!changed(5, |shard| shard.parameters = Digest([6; 32])), "its parameters");
    assert!(!changed(5, |shard| shard.beta_powers[0] += 1), "its powers");
    for open in 0..5 {
        assert!(changed(open, |shard| shard.parameters = Digest([6; 32])), "{open}: STATE-5 tells");
        assert!(!changed(open, |shard| shard.step -= 1), "{open} took no step");
    }
    assert!(
        !outcome_takes(&chain, |shards| {
            shards.pop();
        }),
        "a row that is gone"
    );
    assert!(!outcome_takes(&chain, |shards| shards.push(shards[5])), "a row too many");
}

#[test]
fn state_8_rows_that_come_to_be_are_equal() {
    let chain = reducing(3, 1);
    assert!(outcome_takes(&chain, |_| {}));
    assert!(outcome_takes(&chain, |shards| {
        shards[1..].iter_mut().for_each(|row| row.parameters = Digest([6; 32]));
    }));
    for row in 1..4 {
        assert!(!outcome_takes(&chain, |shards| shards[row].second = Digest([6; 32])), "{row}");
    }
    assert!(!outcome_takes(&chain, |shards| shards.truncate(2)), "they come now");
    assert!(!outcome_takes(&chain, |shards| shards[1..].iter_mut().for_each(|row| row.step = 0)));
    let early = reducing(3, 2);
    assert!(outcome_takes(&early, |_| {}));
    assert!(!outcome_takes(&early, |shards| shards.extend([shards[1]; 2])), "they come an update later");
}

#[test]
fn row_4_a_rewind_to_one_row_takes_back_who_holds_which() {
    let mut chain = begun(3, 1);
    chain.finish_round();
    assert!(chain.ledger.has_dealt_rows() && chain.ledger.rows() == 3);
    go_back(&mut chain);
    assert_eq!((chain.ledger.has_dealt_rows(), chain.ledger.rows()), (false, 1));
    assert!((0..4).all(|number| holding(&chain, number).is_none()));
    begin(&mut chain);
    assert_eq!(seated(&chain, 4), [Some(Row(0)), Some(Row(0)), Some(Row(0)), None]);
    chain.finish_round();
    assert!(chain.ledger.has_dealt_rows(), "they are dealt again");

    let mut chain = begun(3, 0);
    chain.finish_round();
    let held = [0, 1, 2].map(|number| holding(&chain, number));
    go_back(&mut chain);
    assert_eq!([0, 1, 2].map(|number| holding(&chain, number)), held, "the state still has several rows");
}

#[test]
fn ledger_8_a_part_of_a_row_counts_contributions_of_that_row_only() {
    let mut chain = begun(2, 0);
    chain.freeze(0..4);
    let view = chain.ledger.current().unwrap().clone();
    let of = |part| slots((0..4).filter(|slot| view.computes_on(Slot(*slot), part)));
    let right: Vec<_> = chain.parts().map(of).collect();
    assert!(takes(&chain, chain.inputs(0, right.clone())));
    for part in chain.parts().filter(|part| view.parts()[part.index()].shard != ShardId::TRUNK) {
        for slot in (0..4).filter(|slot| !view.computes_on(Slot(*slot), part)) {
            let mut wrong = right.clone();
            wrong[part.index()].insert(Slot(slot));
            assert!(!takes(&chain, chain.inputs(0, wrong)), "slot {slot} in part {part}");
        }
    }
    let trunk = view.parts()[Part(0).index()].shard;
    assert_eq!((trunk, right[0]), (ShardId::TRUNK, slots(0..4)), "everybody computes on the trunk");
}

#[test]
fn commit_3_a_commitment_names_its_row_and_the_open_ones() {
    let good = |chain: &Chain| chain.commitment(1, 2);
    let takes = |chain: &Chain, commit: &Commit| {
        chain.ledger.check_commit(&node(1).sign(chain.ledger.run(), commit)).is_ok()
    };
    let chain = begun(5, 0);
    let commit = good(&chain);
    let route = commit.route.clone().unwrap();
    assert!(takes(&chain, &commit));
    assert!((0..4).all(|row| route.open.contains(Row(row))) && !route.open.contains(Row(4)));
    let with = |route| Commit { route, ..commit.clone() };
    assert!(!takes(&chain, &with(None)), "no row");
    let row = Row((route.row.0 + 1) % 4);
    assert!(!takes(&chain, &with(Some(Route { row, ..route.clone() }))), "another one's row");
    let open: RowSet = (0..5).map(Row).collect();
    assert!(!takes(&chain, &with(Some(Route { open, ..route.clone() }))), "a closed row");

    let chain = begun(5, 1);
    assert!(good(&chain).route.is_none() && takes(&chain, &good(&chain)));
    let named =
        Commit { route: Some(Route { row: Row(0), open: [Row(0)].into_iter().collect() }), ..good(&chain) };
    assert!(!takes(&chain, &named), "a row of a state with one");
}

/// Five nodes on two rows, three of them on one; a row with fewer than `few` holders is short of them, and rounds are
/// remembered for two more.
fn uneven(few: u16) -> Chain {
    let mut manifest = four(2, 0);
    (manifest.training.rounds, manifest.retention.contributions) = (12, 2);
    if let Family::Mixture(mixture) = &mut manifest.model.family {
        mixture.few = few;
    }
    let mut chain = Chain::open(manifest);
    chain.admit_verifier(0);
    (0..5).for_each(|number| chain.admit_node(number, true));
    begin(&mut chain);
    chain
}

/// The open round to its end, by these nodes alone.
fn round_of(chain: &mut Chain, nodes: &[u8]) {
    chain.freeze(nodes.iter().copied());
    let view = chain.ledger.current().unwrap().clone();
    let slots_of: Vec<u16> =
        nodes.iter().map(|number| view.slot_of(&node(*number).id()).unwrap().0).collect();
    let of = |part| slots(slots_of.iter().copied().filter(|slot| view.computes_on(Slot(*slot), part)));
    chain.seal(chain.inputs(0, chain.parts().map(of).collect()));
    chain.seal(Body::Outcome(chain.outcome()));
}

#[test]
fn row_7_a_holder_moves_to_a_row_that_has_lost_its_own() {
    let mut chain = uneven(5);
    let rows = seated(&chain, 5);
    let of = |row| (0..5).filter(|number| rows[usize::from(*number)] == Some(Row(row))).collect::<Vec<u8>>();
    let [large, small] = if of(0).len() == 3 { [0, 1] } else { [1, 0] };
    let stay = of(large);
    // The others say nothing: they are away from now on, and count as holders as long as their rounds are remembered.
    for round in 0..4u32 {
        assert!(
            stay.iter().all(|number| holding(&chain, *number).unwrap().row == Row(large)),
            "round {round}"
        );
        round_of(&mut chain, &stay);
    }
    let moved: Vec<u8> =
        stay.iter().copied().filter(|number| holding(&chain, *number).unwrap().row == Row(small)).collect();
    let [mover] = moved[..] else { panic!("{moved:?}") };
    let seats = seated(&chain, 5);
    assert_eq!(seats[usize::from(mover)], None, "it has no seat until it holds its new row");
    assert_eq!(seats.iter().flatten().count(), 2, "{seats:?}");
    let ready = ready(&chain, mover);
    chain.seal(say(&chain, &node(mover), &ready));
    let stay: Vec<u8> = stay.into_iter().filter(|number| *number != mover).collect();
    round_of(&mut chain, &stay);
    assert_eq!(seated(&chain, 5)[usize::from(mover)], Some(Row(small)));
    // Two and one: nobody moves any more.
    let mut all: Vec<u8> = stay.iter().copied().chain([mover]).collect();
    // Commitments are in order of slots.
    all.sort_unstable();
    round_of(&mut chain, &all);
    assert_eq!(seated(&chain, 5).iter().flatten().count(), 3);
    assert_eq!(steps_of(&chain, small), 2, "the row goes on from where its holders left it");
}

fn steps_of(chain: &Chain, row: u16) -> u32 {
    chain.ledger.state().shard(ShardId::of(Row(row))).unwrap().step
}

#[test]
fn row_7_nobody_moves_where_no_row_is_short_of_holders() {
    let mut chain = uneven(0);
    let before: Vec<_> = (0..5).map(|number| holding(&chain, number)).collect();
    let rows = seated(&chain, 5);
    let stay: Vec<u8> = (0..5).filter(|number| rows[usize::from(*number)] == Some(Row(0))).collect();
    (0..5).for_each(|_| round_of(&mut chain, &stay));
    assert_eq!((0..5).map(|number| holding(&chain, number)).collect::<Vec<_>>(), before);

    let holder = |number: u8, row, seatable| RowHolder { member: node(number).id(), row: Row(row), seatable };
    let head = Digest([9; 32]);
    let moves = |holders: &[RowHolder], few| move_holder(&head, holders, 3, few);
    let holders = [
        holder(0, 0, true),
        holder(1, 0, false),
        holder(2, 1, true),
        holder(3, 1, true),
        holder(4, 1, false),
    ];
    let (mover, row) = moves(&holders, 1).unwrap();
    assert!(
        (mover == node(2).id() || mover == node(3).id()) && row == Row(2),
        "of those that may have a seat"
    );
    assert_eq!(moves(&holders, 0), None);
    let two = [holder(0, 0, true), holder(1, 0, true)];
    assert_eq!(moves(&two, 1).map(|(_, row)| row), Some(Row(1)), "the first of two without holders");
    let away =
        [holder(0, 0, true), holder(1, 0, true), holder(2, 0, false), holder(3, 1, true), holder(4, 2, true)];
    assert_eq!(moves(&away, 5), None, "who is away drives nobody out of the row");
    let one_each = [holder(0, 0, true), holder(1, 1, true)];
    assert_eq!(moves(&one_each, 1), None, "one more is not enough");
    let fetching = [holder(0, 0, false), holder(1, 0, false)];
    assert_eq!(moves(&fetching, 1), None, "whoever fetches its row does not go on to the next");
    assert_eq!(move_holder(&head, &[], 3, 1), None);
}
