//! Fingerprints, projections, coins and draws.

use serde_json::{Value, json};

use muster_core::codec::encode;
use muster_core::coins::{self, Coin, CoinKind, CoinOpening, CoinTerms, CoinTree};
use muster_core::error::Reject;
use muster_core::ids::{Block, MemberId, Round, Slot, hex};
use muster_core::layout::Layout;
use muster_core::sketch;
use muster_core::sketch::probe::projected;
use muster_core::sketch::projection::projections;

use super::cases::{as_digest, as_integer, as_word, digest, full, list, number, read_as, shown, text};

pub(super) fn fingerprint(op: &str, inputs: &Value) -> Value {
    let points = || {
        let points: Vec<u64> = list(inputs, "points").iter().map(as_word).collect();
        [points[0], points[1]]
    };
    match op {
        "points" => json!({ "points": sketch::points(&digest(inputs, "freeze")).map(shown) }),
        "fingerprint" => {
            let q: Vec<i32> = list(inputs, "q").iter().map(as_integer).collect();
            let mut sketcher = sketch::Sketcher::new(points());
            sketcher.absorb(number(inputs, "offset"), &q);
            json!({ "fingerprint": sketcher.finish().map(shown) })
        }
        "fingerprint_rule" => {
            let (multiplier, shift) = (number(inputs, "multiplier"), number(inputs, "shift") as i64);
            let value =
                |c: u64| i32::try_from(i64::from((c * multiplier) as u32) - shift).expect("a coefficient");
            let q: Vec<i32> = (0..number(inputs, "count")).map(value).collect();
            json!({ "fingerprint": sketch::fingerprint(points(), &q).map(shown) })
        }
        _ => panic!("no operation {op:?}"),
    }
}

pub(super) fn tolerance(op: &str, inputs: &Value) -> Value {
    let member = |name: &str| MemberId(digest(inputs, name).0);
    match op {
        "groups" => {
            let groups = Layout::of(&read_as(inputs, "model")).groups();
            json!({ "groups": groups.iter().map(|group| [group.start, group.end]).collect::<Vec<_>>() })
        }
        "deviation" => {
            let integers = |name: &str| -> Vec<i32> { list(inputs, name).iter().map(as_integer).collect() };
            let (seed, own, said) = (digest(inputs, "seed"), integers("own"), integers("said"));
            let bound = |range: &Value, end: usize| range[end].as_u64().expect("a number") as usize;
            let groups: Vec<_> =
                list(inputs, "groups").iter().map(|range| bound(range, 0)..bound(range, 1)).collect();
            let [first, second] = [&own, &said].map(|q| projections(&seed, &groups, 0, q));
            let pairs = groups.iter().zip(first.chunks(64).zip(second.chunks(64)));
            let deviations =
                pairs.map(|(group, (own, said))| shown(projected(group.len(), own, said).to_bits()));
            json!({ "deviations": deviations.collect::<Vec<_>>(), "projections": first })
        }
        "jury" => {
            let verifiers: Vec<MemberId> =
                list(inputs, "verifiers").iter().map(|id| MemberId(as_digest(id).0)).collect();
            let drawn =
                coins::jury(&digest(inputs, "outcome"), &member("culprit"), &member("accuser"), &verifiers);
            let place = |juror: &MemberId| verifiers.iter().position(|verifier| verifier == juror);
            json!({ "jury": drawn.iter().map(place).collect::<Vec<_>>() })
        }
        _ => panic!("no operation {op:?}"),
    }
}

pub(super) fn coin(op: &str, inputs: &Value) -> Value {
    match op {
        "coin" => toss(inputs),
        "open_coin" => json!({ "accepted": opened(inputs).is_ok() }),
        "select" => {
            let (coin, freeze) = (opened(inputs).expect("a registered coin"), digest(inputs, "freeze"));
            let ppm = number(inputs, "share_ppm") as u32;
            let chosen = |who| coins::selects(&coin, &freeze, &MemberId(as_digest(who).0), ppm);
            json!({ "selected": list(inputs, "members").iter().map(chosen).collect::<Vec<_>>() })
        }
        "select_block" => {
            let (coin, freeze) = (opened(inputs).expect("a registered coin"), digest(inputs, "freeze"));
            let ppm = number(inputs, "blocks_ppm") as u32;
            let chosen = |block| coins::selects_block(&coin, &freeze, block, ppm);
            json!({ "selected": blocks(inputs).map(chosen).collect::<Vec<_>>() })
        }
        "block_inspector" => {
            let (outcome, verifiers) = (digest(inputs, "outcome"), number(inputs, "verifiers") as usize);
            let place = |block| coins::block_inspector(&outcome, block, verifiers);
            json!({ "places": blocks(inputs).map(place).collect::<Vec<_>>() })
        }
        "draw" => {
            let (coin, freeze) = (opened(inputs).expect("a registered coin"), digest(inputs, "freeze"));
            let (m, a) = (number(inputs, "m") as u32, number(inputs, "a") as u8);
            json!({ "positions": coins::draw(&coin, &freeze, &digest(inputs, "table"), m, a) })
        }
        "inspector" => {
            let verifiers: Vec<MemberId> =
                list(inputs, "verifiers").iter().map(|id| MemberId(as_digest(id).0)).collect();
            let slot = Slot(number(inputs, "slot") as u16);
            let drawn = coins::inspector(&digest(inputs, "outcome"), slot, &verifiers);
            let place = drawn.and_then(|drawn| verifiers.iter().position(|verifier| *verifier == drawn));
            json!({ "inspector": place })
        }
        "recheck" => {
            let coin = opened(inputs).expect("a registered coin");
            let (ppm, others) = (number(inputs, "recheck_ppm") as u32, number(inputs, "others") as usize);
            let drawn = |verdict| coins::rechecks(&coin, &as_digest(verdict), ppm, others);
            json!({ "drawn": list(inputs, "verdicts").iter().map(drawn).collect::<Vec<_>>() })
        }
        _ => panic!("no operation {op:?}"),
    }
}

fn blocks(inputs: &Value) -> impl Iterator<Item = Block> {
    list(inputs, "blocks").iter().map(|block| Block(block.as_u64().expect("a number") as u32))
}

fn opened(inputs: &Value) -> Result<Coin, Reject> {
    read_as::<CoinOpening>(inputs, "opening").verify(&read_as::<CoinTerms>(inputs, "terms"))
}

fn toss(inputs: &Value) -> Value {
    let round = |name| Round(number(inputs, name) as u32);
    let (rounds, leaf_coins) = (number(inputs, "rounds") as u32, number(inputs, "leaf_coins") as u16);
    let tree = CoinTree::new(digest(inputs, "secret").0, round("first_round"), rounds, leaf_coins);
    let tree = tree.expect("a vector has few coins");
    let kind = if text(inputs, "kind") == "Node" { CoinKind::Node } else { CoinKind::Leaf };
    let opening = tree.open(kind, round("round"), number(inputs, "k") as u16).expect("a registered coin");
    assert!(opening.verify(&tree.terms()).is_ok());
    let (terms, shown) = (hex(&encode(&tree.terms())), hex(&encode(&opening)));
    // COIN-1: the coin follows from secret, kind, round and number.
    json!({ "coin": full(&opening.coin), "terms": terms, "opening": shown })
}
