//! Attacks on the experts of a mixture: what each changes in a contribution, and that nothing else is changed.

use std::ops::Range;

use muster_core::codec::Real;
use muster_core::limits::GRID_LIMIT;
use muster_core::manifest::Mixture;
use muster_core::state::State;
use muster_member::LeafSum;

use super::*;

/// Columns and active experts of the tests' mixture.
const COLUMNS: u16 = 4;
/// The seed of [`played`], modulo [`COLUMNS`].
const TARGET: u16 = 2;

/// What an attack contributes to this work.
fn played(name: &str, work: &Assignment) -> Summed {
    let campaign = Campaign { seed: 4 * 7 + u64::from(TARGET), ..Campaign::from(Round(0)) };
    contribute(&*name.parse::<Attack>().unwrap().conduct(&campaign), work)
}

fn mixture_work() -> Assignment {
    work_on(Kind::Mixture, FROM)
}

/// A work like this one, with another mixture.
fn changed(work: Assignment, change: impl FnOnce(&mut Mixture)) -> Assignment {
    let model = experts::with(&work.manifest.model, change);
    Assignment { manifest: Arc::new(Manifest { model, ..Manifest::clone(&work.manifest) }), ..work }
}

/// Whether every coefficient outside these places is that of an honest leaf, in every leaf.
fn else_honest(played: &Summed, honest: &Summed, places: &[Range<usize>]) -> bool {
    let inside = |at: usize| places.iter().any(|place| place.contains(&at));
    played.leaves.iter().zip(&honest.leaves).all(|((q, loss), (is, is_loss))| {
        let coefficients = q.iter().zip(is).enumerate();
        loss == is_loss && coefficients.into_iter().all(|(at, (q, is))| q == is || inside(at))
    })
}

fn at<'a>(summed: &'a Summed, places: &'a [Range<usize>]) -> impl Iterator<Item = i32> + 'a {
    let of_leaf = |(q, _): &'a LeafSum| places.iter().flat_map(|place| q[place.clone()].iter().copied());
    summed.leaves.iter().flat_map(of_leaf)
}

#[test]
fn attacks_on_experts_are_refused_where_there_are_none() {
    let decoder = Manifest::clone(&work(FROM).manifest);
    let mixture = Manifest::clone(&mixture_work().manifest);
    let with = |manifest: &Manifest, change: &dyn Fn(&mut Mixture)| {
        let model = experts::with(&manifest.model, |mixture| change(mixture));
        Manifest { model, ..manifest.clone() }
    };
    let narrow = with(&mixture, &|mixture| mixture.active = 1);
    let single = with(&narrow, &|mixture| mixture.columns = 1);
    let why = |name: &str, run: &Manifest| name.parse::<Attack>().unwrap().suits(run).map_err(|why| why.0);
    let rows = with(&mixture, &|mixture| mixture.rows = 2);
    for attack in ATTACKS.iter().filter(|attack| !attack.wants_local()) {
        assert!(attack.suits(&rows).is_ok(), "{}", attack.name);
        let expected =
            format!("{}: the run's model has 1 row of experts, and this attack needs 2", attack.name);
        assert_eq!(why(attack.name, &mixture), if attack.wants_rows() { Err(expected) } else { Ok(()) });
        let expected = format!("{}: the run's model has no experts", attack.name);
        assert_eq!(why(attack.name, &decoder), if attack.wants_experts() { Err(expected) } else { Ok(()) });
    }
    let wanting = ATTACKS.iter().filter(|attack| attack.wants_experts() && !attack.wants_rows());
    let wanting = wanting.map(|attack| attack.name);
    assert_eq!(wanting.collect::<Vec<_>>(), ["starve", "collapse", "bomb", "top-one", "tie"]);
    let fewer = "top-one: the run's model has 1 active expert, and this attack needs 2";
    assert_eq!(why("top-one", &narrow), Err(fewer.into()));
    assert_eq!(["starve", "collapse", "bomb", "tie"].map(|name| why(name, &narrow)), [const { Ok(()) }; 4]);
    let fewer = "tie: the run's model has 1 expert in a row, and this attack needs 2";
    assert_eq!(why("tie", &single), Err(fewer.into()));
    assert_eq!(["starve", "bomb"].map(|name| why(name, &single)), [const { Ok(()) }; 2]);
    for attack in ATTACKS.iter().filter(|attack| attack.wants_local()) {
        assert!(why(attack.name, &decoder).unwrap_err().contains("no local updates"), "{}", attack.name);
        assert!(attack.suits(&work_on(Kind::Local, FROM).manifest).is_ok());
    }
}

/// Leaf by leaf: the true one, the one of an attack, and the places of the expert that the true one teaches most.
fn busiest_experts(name: &str) -> Vec<(Summed, Summed, Vec<Range<usize>>)> {
    let work = mixture_work();
    let model = &work.manifest.model;
    let alone = |summed: Summed| summed.leaves.into_iter().map(|leaf| Summed::of(vec![leaf]));
    let pairs = alone(contribute(&HonestNode, &work)).zip(alone(played(name, &work)));
    let with_places = pairs.map(|(honest, played)| {
        let size = |expert: &u16| {
            at(&honest, &experts::expert(model, *expert)).map(|q| u64::from(q.unsigned_abs())).sum::<u64>()
        };
        let places = experts::expert(model, (0..COLUMNS).max_by_key(size).unwrap());
        // LAYOUT-5: three matrices in each layer.
        assert_eq!(places.len(), 3 * model.layers as usize);
        (honest, played, places)
    });
    with_places.collect()
}

#[test]
fn one_expert_starves_and_the_others_learn() {
    for (honest, starved, expert) in busiest_experts("starve") {
        assert!(at(&honest, &expert).any(|q| q != 0) && at(&starved, &expert).all(|q| q == 0));
        assert!(else_honest(&starved, &honest, &expert));
    }
}

/// GRID-2 clamps to ±2²².
#[test]
fn a_bomb_fills_the_grid_in_one_expert() {
    for (honest, bombed, expert) in busiest_experts("bomb") {
        assert!(else_honest(&bombed, &honest, &expert));
        for (bombed, honest) in at(&bombed, &expert).zip(at(&honest, &expert)) {
            let far = if honest.abs() > 4 { honest.signum() * GRID_LIMIT } else { honest * 1_000_000 };
            assert_eq!(bombed, far);
        }
        assert!(at(&bombed, &expert).filter(|q| q.abs() == GRID_LIMIT).count() > 100);
    }
}

/// ARITH-73 with f = (1, 0, 0, 0) and equal P: what the one expert gains, the others lose in equal shares.
#[test]
fn the_router_is_drawn_to_one_expert() {
    let work = mixture_work();
    let (honest, drawn) = (contribute(&HonestNode, &work), played("collapse", &work));
    let model = &work.manifest.model;
    let routers = experts::routers(model);
    assert!(else_honest(&drawn, &honest, &routers));
    for router in routers {
        let pull: Vec<i32> = router.map(|at| drawn.q[at] - honest.q[at]).collect();
        let lines: Vec<&[i32]> = pull.chunks_exact(model.width as usize).collect();
        let (gains, others) = (lines[usize::from(TARGET)], lines.len() as i32 - 1);
        for lost in (0..lines.len()).filter(|line| *line != usize::from(TARGET)).map(|line| lines[line]) {
            // Each of the leaves was dithered.
            let dither = (others + 1) * LEAVES as i32;
            assert!(
                gains.iter().zip(lost).all(|(gain, lost)| (gain + others * lost).abs() <= dither),
                "{lines:?}"
            );
        }
        let size =
            |values: &mut dyn Iterator<Item = i32>| values.map(|q| f64::from(q).powi(2)).sum::<f64>().sqrt();
        let own = size(&mut at(&honest, &experts::routers(model)));
        assert!(size(&mut pull.iter().copied()) > 10.0 * own, "{own}: {lines:?}");
    }
}

/// With one expert a token, whose weight is 1, nothing but the balance moves the router (ARITH-73).
#[test]
fn a_token_passes_one_expert_fewer() {
    let work = changed(mixture_work(), |mixture| mixture.balance = Real::ZERO);
    let routers = experts::routers(&work.manifest.model);
    let (honest, fewer) = (contribute(&HonestNode, &work), played("top-one", &work));
    assert!(at(&honest, &routers).any(|q| q != 0) && at(&fewer, &routers).all(|q| q == 0));
    assert!(honest.loss != fewer.loss && honest.q.len() == fewer.q.len());
}

/// ARITH-70: among equal numbers the lower expert comes first.
#[test]
fn the_last_of_equal_experts_comes_first() {
    let work = mixture_work();
    let model = work.manifest.model.clone();
    let mut state = State::clone(&work.state);
    for router in experts::routers(&model) {
        let lines = &mut state.parameters[router];
        let (first, others) = lines.split_at_mut(model.width as usize);
        others.chunks_exact_mut(first.len()).for_each(|line| line.copy_from_slice(first));
    }
    let work = Assignment { state: Arc::new(state), ..work };
    let (honest, tie) = (contribute(&HonestNode, &work), played("tie", &work));
    let used = |summed: &Summed| -> Vec<bool> {
        (0..COLUMNS).map(|expert| at(summed, &experts::expert(&model, expert)).any(|q| q != 0)).collect()
    };
    assert_eq!(used(&honest), [true, true, false, false]);
    assert_eq!(used(&tie)[2..], [true, true]);
}
