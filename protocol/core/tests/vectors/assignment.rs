//! Whose work is what, and which integers a leaf becomes.

use serde_json::{Value, json};

use muster_core::assign::{self, DrawnRow, PartPlan, Seating, TimedShare};
use muster_core::grid::{self, Dither};
use muster_core::ids::{Digest, Leaf, MemberId, Part, Round, Row, RunId, ShardId, ShareClass, Slot};
use muster_core::layout::Layout;
use muster_core::ledger::{FrozenRow, RowHolder, deal_rows, draw_rows, move_holder};
use muster_core::manifest::{Family, Manifest, Model};
use muster_core::messages::round::Route;

use super::cases::{as_digest, digest, full, list, number, read_as, word};

pub(super) fn assignment(op: &str, inputs: &Value) -> Value {
    let run = || RunId(digest(inputs, "run"));
    let seed = || digest(inputs, "seed");
    let small = |name| number(inputs, name) as u16;
    match op {
        "seed" => {
            let round = Round(number(inputs, "round") as u32);
            json!({ "seed": full(&assign::round_seed(run(), round, &digest(inputs, "state"))) })
        }
        "calibration" => json!({ "seed": full(&assign::calibration_seed(run())) }),
        "windows" => {
            let leaf = assign::leaf(Slot(small("slot")), small("seats"), number(inputs, "position") as u32);
            let (count, windows) = (number(inputs, "count") as u32, number(inputs, "windows"));
            json!({ "leaf": leaf.0, "windows": assign::windows(&seed(), leaf, count, windows) })
        }
        "windows_of_segment" => {
            let manifest: Manifest = read_as(inputs, "manifest");
            let segment = Leaf(number(inputs, "segment"));
            let found = assign::leaf_windows(&manifest, &seed(), segment, None, &mut |_, _| None);
            json!({ "windows": found.expect("one row") })
        }
        "windows_of_row" => {
            let (count, windows) = (number(inputs, "count") as u32, number(inputs, "windows"));
            let drawn = DrawnRow { row: Row(small("row")), rows: small("rows") };
            let share = number(inputs, "share");
            let of_window = |window: u64| {
                let row = window.checked_div(share)? % u64::from(drawn.rows);
                Some(Row(row as u16))
            };
            let leaf = Leaf(number(inputs, "leaf"));
            json!({ "windows": assign::windows_of_row(&seed(), leaf, count, windows, drawn, of_window) })
        }
        "masked" => {
            let model: Model = read_as(inputs, "model");
            let Family::Albert(albert) = &model.family else { panic!("a model that masks") };
            let tokens: Vec<u32> = (0..=model.sequence).map(|place| place % 6).collect();
            let (leaf, window) = (Leaf(number(inputs, "leaf")), number(inputs, "window") as u32);
            let masked = assign::masked(&model, albert, &seed(), leaf, window, &tokens);
            json!({ "inputs": masked.inputs, "places": masked.positions })
        }
        _ => parts(op, inputs),
    }
}

/// Who reduces which part, and who could reduce how much.
fn parts(op: &str, inputs: &Value) -> Value {
    let small = |name| number(inputs, name) as u16;
    match op {
        "parts" => {
            let plans = seated(inputs, assign::parts);
            let shown = plans.iter().map(|plan| {
                let blocks: Vec<u32> = plan.blocks.iter().map(|block| block.0).collect();
                json!({ "shard": plan.shard.0, "blocks": blocks, "aggregator": plan.aggregator.0 })
            });
            json!({ "parts": shown.collect::<Vec<_>>() })
        }
        "seconds" => {
            let seconds = seated(inputs, |seating| assign::seconds(seating, &assign::parts(seating)));
            json!({ "seconds": seconds.iter().map(|slot| slot.map(|slot| slot.0)).collect::<Vec<_>>() })
        }
        "reassign" => {
            let (part, shard) = (Part(small("part")), ShardId(small("shard")));
            let plan = PartPlan { shard, blocks: Vec::new(), aggregator: Slot(small("failed")) };
            let passed: Vec<Slot> = numbers(inputs, "passed").into_iter().map(Slot).collect();
            let order = seated(inputs, |seating| assign::reassignment(seating, part, &plan, &passed));
            json!({ "order": order.iter().map(|slot| slot.0).collect::<Vec<_>>() })
        }
        "timed_classes" => {
            let share = |of: &Value| TimedShare {
                class: ShareClass(of[0].as_u64().expect("a class") as u8),
                time: of[1].as_u64().expect("a time"),
            };
            let shares: Vec<TimedShare> = list(inputs, "times").iter().map(share).collect();
            let after: Vec<u8> = assign::timed_classes(&shares).into_iter().map(|class| class.0).collect();
            json!({ "classes": after })
        }
        _ => panic!("no operation {op:?}"),
    }
}

/// The numbers of a list; none where there is no list.
fn numbers(inputs: &Value, name: &str) -> Vec<u16> {
    let listed = inputs.get(name).map_or(&[][..], |_| list(inputs, name).as_slice());
    listed.iter().map(|number| number.as_u64().expect("a number") as u16).collect()
}

/// What follows from the seats of a case. Where it has no rows, the state has one.
fn seated<T>(inputs: &Value, answer: impl FnOnce(&Seating<'_>) -> T) -> T {
    let layout = Layout::of(&read_as(inputs, "model"));
    let layout = if inputs.get("planes").is_some() { layout.with_moments() } else { layout };
    let aggregators: Vec<Slot> = numbers(inputs, "aggregators").into_iter().map(Slot).collect();
    let several = inputs.get("rows").is_some();
    let rows =
        if several { numbers(inputs, "rows").into_iter().map(Row).collect() } else { vec![Row(0); 256] };
    let classes = match inputs.get("classes") {
        Some(_) => numbers(inputs, "classes").into_iter().map(|class| ShareClass(class as u8)).collect(),
        None => vec![ShareClass(8); 256],
    };
    // Which row the route itself is of changes nothing.
    let route = several.then(|| Route { row: Row(7), open: rows.iter().copied().collect() });
    let seating = Seating {
        layout: &layout,
        planes: inputs.get("planes").map_or(1, |planes| planes.as_u64().expect("a number") as usize),
        seed: &digest(inputs, "seed"),
        rows: &rows,
        route: route.as_ref(),
        aggregators: &aggregators,
        classes: &classes,
    };
    // AUDIT-13: whoever knows the open rows and the number of parts finds the same ones.
    let parts = assign::parts(&seating);
    let found =
        assign::parts_in(&layout, seating.planes, &assign::open_shards(&layout, route.as_ref()), parts.len());
    assert_eq!(found, Some(parts.into_iter().map(|plan| (plan.shard, plan.blocks)).collect()));
    answer(&seating)
}

fn moved_holder(inputs: &Value) -> Value {
    let holder = |holder: &Value| RowHolder {
        member: MemberId(as_digest(&holder[0]).0),
        row: Row(holder[1].as_u64().expect("a row") as u16),
        seatable: holder[2].as_bool().expect("a truth value"),
    };
    let holders: Vec<RowHolder> = list(inputs, "holders").iter().map(holder).collect();
    let [rows, few] = ["rows", "few"].map(|name| number(inputs, name) as u16);
    let moved = move_holder(&digest(inputs, "head"), &holders, rows, few);
    json!({ "moved": moved.map(|(member, row)| json!({ "member": format!("{member:#}"), "row": row.0 })) })
}

fn row_plan(inputs: &Value) -> Value {
    let [few, held] = ["few", "held"].map(|name| number(inputs, name) as u16);
    let round = Round(number(inputs, "round") as u32);
    let row = |row: &Value| FrozenRow {
        seated: row["seated"].as_bool().expect("a truth value"),
        weighted: number(row, "weighted") as u16,
        ripe: row["ripe"].as_u64().map(|round| Round(round as u32)),
    };
    let rows: Vec<FrozenRow> = list(inputs, "rows").iter().map(row).collect();
    let thin: Vec<bool> = rows.iter().map(|row| row.is_thin(few)).collect();
    let waits: Vec<bool> = rows.iter().map(|row| row.is_held(held)).collect();
    let steps: Vec<Option<u32>> = rows.iter().map(|row| row.step(round, held).map(|round| round.0)).collect();
    json!({ "thin": thin, "held": waits, "steps": steps })
}

pub(super) fn experts(op: &str, inputs: &Value) -> Value {
    match op {
        "row_plan" => return row_plan(inputs),
        "moved_holder" => return moved_holder(inputs),
        _ => {}
    }
    let head: Digest = digest(inputs, "head");
    let nodes: Vec<MemberId> = list(inputs, "nodes").iter().map(|id| MemberId(as_digest(id).0)).collect();
    let rows = number(inputs, "rows") as u16;
    let held: Vec<Option<Row>> = match op {
        "dealt" => {
            let dealt = deal_rows(&head, nodes.iter().copied(), rows);
            nodes.iter().map(|id| dealt.get(id).copied()).collect()
        }
        "drawn_rows" => {
            let held = list(inputs, "held").iter().map(|row| row.as_u64().map(|row| Row(row as u16)));
            let held: Vec<_> = nodes.iter().copied().zip(held).collect();
            let drawn = draw_rows(&head, &held, rows);
            let of = |id| drawn.iter().find(|(drawn, _)| *drawn == id).map(|(_, row)| *row);
            held.into_iter().map(|(id, row)| row.or_else(|| of(id))).collect()
        }
        _ => panic!("no operation {op:?}"),
    };
    json!({ "rows": held.iter().map(|row| row.map(|row| row.0)).collect::<Vec<_>>() })
}

pub(super) fn on_grid(op: &str, inputs: &Value) -> Value {
    let small = |name: &str| inputs[name].as_i64().expect("a number") as i16;
    match op {
        "quantise" => {
            let step = grid::power_of_two(-i32::from(small("exponent")));
            let gradient = f32::from_bits(word(inputs, "gradient") as u32);
            json!({ "q": grid::quantise(gradient, step, word(inputs, "word") as u32) })
        }
        "dither" => {
            let mut words = vec![0; number(inputs, "count") as usize];
            let mut dither = Dither::new(&digest(inputs, "seed"), Leaf(number(inputs, "leaf")));
            dither.seek(number(inputs, "first"));
            dither.fill(&mut words);
            json!({ "words": words })
        }
        "exponent" => {
            let rms = f64::from_bits(word(inputs, "rms"));
            let wanted = grid::exponent_of(rms, small("grid_bits") as u8, small("fallback"));
            json!({ "wanted": wanted, "next": grid::step_exponent(small("last"), wanted) })
        }
        "loss" => json!({ "fixed": grid::fixed_loss(f64::from_bits(word(inputs, "mean"))) }),
        _ => panic!("no operation {op:?}"),
    }
}
