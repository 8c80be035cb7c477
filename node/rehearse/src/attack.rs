//! Members that cheat, one file for each way to do it. They join like everyone else, see what every member sees, and
//! differ in their [`NodeConduct`] only. What they do follows from the round, their campaign and what is public.
//!
//! To add one: a file with a first line `Peer that …`, a row in [`ATTACKS`], and one in each table of spec/model.md and
//! spec/attacks.md.

mod alie;
mod betrayal;
mod bomb;
mod burst;
mod capture;
mod coalition;
mod collapse;
mod conceal;
mod data;
mod dawdle;
mod drag;
mod drain;
mod edge;
mod equivocate;
mod experts;
mod fit;
mod flip;
mod flood;
mod forge;
mod half;
mod hide;
mod hush;
mod idle;
mod inflate;
mod ipm;
mod jam;
mod labels;
mod late;
mod lazy;
mod loss;
mod mimic;
mod misanswer;
mod moments;
mod mute;
mod nudge;
mod omit;
mod one_leaf;
mod other_row;
mod overclaim;
mod pair;
mod partial;
mod pick;
mod place;
mod prefix;
mod random;
mod rate;
mod receipts;
mod refuse;
mod row_nudge;
mod sandbag;
mod scale;
mod slow;
mod spoil;
mod spread;
mod squat;
mod stale;
mod stale_row;
mod starve;
mod stingy;
mod swap;
mod teleport;
mod thrash;
mod tie;
mod timed;
mod top_one;
mod turn_away;
mod twice;
mod weights;
mod withhold;
mod zero;

use std::str::FromStr;
use std::sync::Arc;

use muster_core::error::Misuse;
use muster_core::ids::Round;
use muster_core::manifest::Manifest;
use muster_member::NodeConduct;

pub use self::betrayal::{Betrayal, Rhythm, Wrong};
pub use self::coalition::Coalition;
use self::experts::Fewest;
use self::timed::Timed;

/// A way to cheat.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// What `--attack` calls it.
    pub name: &'static str,
    /// What gives it away.
    pub betrayal: Betrayal,
    /// The text of the file that does it.
    source: &'static str,
    /// Which of the file's variants it is.
    variant: &'static str,
    /// Rounds that it watches, honest, before it begins.
    prepares: u32,
    /// The experts that a run's model must have; none for an attack on any model.
    experts: Option<Fewest>,
    /// Whether it is on local updates: where gradients are exchanged, it has nothing to lie about.
    local: bool,
    /// Whether it is on those who call: where nobody does, it does nothing.
    calls: bool,
    make: fn(&Campaign) -> Arc<dyn NodeConduct>,
}

/// When, with whom, and what is drawn at random.
#[derive(Clone, Debug, Default)]
pub struct Campaign {
    /// The first round in which it cheats.
    pub from: Round,
    /// Who conspires.
    pub coalition: Coalition,
    /// Draws what an attack chooses at random; members with one seed choose alike.
    pub seed: u64,
}

impl Campaign {
    /// Alone, from this round on.
    pub fn from(from: Round) -> Self {
        Self { from, ..Self::default() }
    }
}

macro_rules! attack {
    ($name:literal, $file:literal $(($variant:literal))?, $wrong:expr, $make:expr $(, $key:ident: $value:expr)*) => {
        Attack {
            $($key: $value,)*
            ..Attack {
                name: $name,
                betrayal: Betrayal { wrong: $wrong, rhythm: Rhythm::Always },
                source: include_str!(concat!("attack/", $file)),
                variant: concat!($($variant)?),
                prepares: 0,
                experts: None,
                local: false,
                calls: false,
                make: $make,
            }
        }
    };
}

const NOT_TAKEN: &str = "nobody takes such a commitment, but each round waits for another until T_commit";
const NOT_DELIVERED: &str =
    "what is not delivered does not count, for anyone alike: it costs the peer its own work";
const WAITS: &str = "what is not delivered does not count, but rounds wait for T_part, ever more rarely";

const DRAINED: &str = "a row without a holder is closed until newcomers hold it";
const UNPROVED: &str = "a false piece is refused by its proof, and comes from another holder";
const SHORTER: &str = "it weighs less, as a slow machine does, and its pace falls";
const UNANSWERED: &str = "who asks goes on with the other holders";

const JAMS: &str = "who audits it recomputes all its leaves, and audits the others meanwhile";
const DAWDLES: &str =
    "while it has the word nobody else owes anything, and too long a turn is its own silence";
const ANOTHER_REDUCES: &str = "another one reduces the part, once T_result is over, ever more rarely";
const TURNED_AWAY: &str = "what it turns away goes to the steward and counts all the same";

const SERVED: &str = "it is served within its share, and the others beside it";
const NOT_SHOWN: &str =
    "what its receipts promise and it does not show is missed at its door, not at the author's";

/// What attacks on rows want.
const OF_ROWS: Fewest = Fewest { columns: 1, active: 1, rows: 2 };

/// All ways to cheat, in the order in which help lists them.
pub const ATTACKS: &[Attack] = &[
    attack!("flip", "flip.rs", Wrong::Sum, |_| Arc::new(flip::Flip)),
    attack!("lazy", "lazy.rs", Wrong::Rows, |_| Arc::<lazy::Lazy>::default(), prepares: 1),
    attack!("sign", "scale.rs"("factor −1"), Wrong::Rows, |_| Arc::new(scale::Scale(-1))),
    attack!("scale", "scale.rs"("factor 10"), Wrong::Rows, |_| Arc::new(scale::Scale(10))),
    attack!("random", "random.rs", Wrong::Rows, |campaign| Arc::new(random::RandomGradient {
        seed: campaign.seed
    })),
    attack!("ipm-0.1", "ipm.rs"("ε = 0.1"), Wrong::Rows, |campaign| {
        Arc::new(ipm::Ipm { epsilon: 0.1, coalition: campaign.coalition.clone() })
    }),
    attack!("ipm-0.6", "ipm.rs"("ε = 0.6"), Wrong::Rows, |campaign| {
        Arc::new(ipm::Ipm { epsilon: 0.6, coalition: campaign.coalition.clone() })
    }),
    attack!("alie", "alie.rs", Wrong::Rows, |campaign| {
        Arc::new(alie::Alie { coalition: campaign.coalition.clone() })
    }),
    attack!("mimic", "mimic.rs"("all the same one"), Wrong::Rows, |campaign| {
        Arc::new(mimic::Mimic { together: true, coalition: campaign.coalition.clone() })
    }),
    attack!("copy", "mimic.rs"("the one before it"), Wrong::Rows, |campaign| {
        Arc::new(mimic::Mimic { together: false, coalition: campaign.coalition.clone() })
    }),
    attack!("labels", "labels.rs", Wrong::Rows, |_| Arc::new(labels::Labels)),
    attack!("data", "data.rs", Wrong::Rows, |_| Arc::new(data::FavouriteText)),
    attack!("stale", "stale.rs", Wrong::Rows, |_| Arc::<stale::Stale>::default(), prepares: stale::LAG),
    attack!("half", "half.rs", Wrong::HalfOfRows, |_| Arc::new(half::Half)),
    attack!("int8", "weights.rs"("int8"), Wrong::Rows, |_| Arc::new(weights::RoundedWeights::Int8)),
    attack!("bf16", "weights.rs"("bfloat16"), Wrong::Rows, |_| Arc::new(weights::RoundedWeights::Bf16)),
    attack!("zero", "zero.rs", Wrong::Rows, |_| Arc::new(zero::Zero)),
    attack!("one-block", "place.rs"("a block"), Wrong::Rows, |_| Arc::new(place::Scope::Block)),
    attack!("one-part", "place.rs"("a part"), Wrong::Rows, |_| Arc::new(place::Scope::Part)),
    attack!("one-tensor", "place.rs"("a tensor"), Wrong::Rows, |_| Arc::new(place::Scope::Tensor)),
    attack!("spread", "spread.rs", Wrong::Sum, |_| Arc::new(spread::Spread)),
    attack!("loss", "loss.rs", Wrong::Rows, |_| Arc::new(loss::Loss)),
    attack!("one-leaf", "one_leaf.rs", Wrong::Row, |_| Arc::new(one_leaf::OneLeaf)),
    attack!("slow", "slow.rs", Wrong::Row, |campaign| Arc::new(slow::Slow { from: campaign.from }),
        betrayal: Betrayal { wrong: Wrong::Row, rhythm: Rhythm::Every(slow::EVERY) }),
    attack!("burst", "burst.rs", Wrong::Silence, |campaign| Arc::new(burst::Burst { from: campaign.from }),
        betrayal: Betrayal { wrong: Wrong::Silence, rhythm: Rhythm::Once }),
    attack!("fit", "fit.rs", Wrong::Row, |_| Arc::new(fit::Fit)),
    attack!("swap", "swap.rs", Wrong::Silence, |_| Arc::new(swap::Swap)),
    attack!("refuse", "refuse.rs", Wrong::Silence, |campaign| Arc::new(refuse::AuditRefusal { from: campaign.from }),
        betrayal: Betrayal { wrong: Wrong::Silence, rhythm: Rhythm::Every(refuse::EVERY) }),
    attack!("mute", "mute.rs", Wrong::Silence, |_| Arc::new(mute::Mute)),
    attack!("equivocate", "equivocate.rs", Wrong::Words, |_| Arc::new(equivocate::Equivocate)),
    attack!("overclaim", "overclaim.rs", Wrong::Nothing(NOT_TAKEN), |_| Arc::new(overclaim::Overclaim)),
    attack!("inflate", "inflate.rs", Wrong::Part, |_| Arc::new(inflate::Inflate)),
    attack!("spoil", "spoil.rs", Wrong::Part, |_| Arc::new(spoil::Spoil::default())),
    attack!("twice", "twice.rs", Wrong::Words, |_| Arc::new(twice::Twice)),
    attack!("nudge", "nudge.rs", Wrong::Block, |_| Arc::new(nudge::Nudge)),
    attack!("omit", "omit.rs", Wrong::Block, |_| Arc::new(omit::Omit)),
    attack!("idle", "idle.rs", Wrong::Nothing(ANOTHER_REDUCES), |_| Arc::new(idle::IdleAggregator)),
    attack!("withhold", "withhold.rs"("and says so"), Wrong::Nothing(NOT_DELIVERED), |_| {
        Arc::new(withhold::Withhold { says_so: true })
    }),
    attack!("stall", "withhold.rs"("and says nothing"), Wrong::Nothing(WAITS), |_| {
        Arc::new(withhold::Withhold { says_so: false })
    }),
    attack!("conceal", "conceal.rs", Wrong::Hidden, |_| Arc::new(conceal::Conceal)),
    attack!("hide", "hide.rs", Wrong::Hidden, |_| Arc::new(hide::Hide)),
    attack!("hush", "hush.rs", Wrong::Sum, |_| Arc::new(hush::Hush),
        betrayal: Betrayal { wrong: Wrong::Sum, rhythm: Rhythm::Once }),
    attack!("jam", "jam.rs", Wrong::Nothing(JAMS), |_| Arc::new(jam::Jam)),
    attack!("late", "late.rs", Wrong::Nothing(DAWDLES), |_| Arc::new(late::Late)),
    attack!("late-flip", "dawdle.rs"("with flip's sums"), Wrong::Sum, |_| Arc::new(dawdle::Dawdle(
        flip::Flip
    ))),
    attack!("late-fit", "dawdle.rs"("with fit's tables"), Wrong::Row, |_| Arc::new(dawdle::Dawdle(fit::Fit))),
    attack!("partial", "partial.rs", Wrong::Nothing(NOT_DELIVERED), |_| Arc::new(partial::Partial)),
    attack!("turn-away", "turn_away.rs", Wrong::Nothing(TURNED_AWAY), |_| Arc::new(turn_away::TurnAway)),
    attack!("thrash", "thrash.rs", Wrong::Nothing(SERVED), |_| Arc::<thrash::Thrash>::default()),
    attack!("receipts", "receipts.rs", Wrong::Nothing(SERVED), |campaign| {
        Arc::new(receipts::Receipts::new(campaign.coalition.clone()))
    }),
    attack!("stingy", "stingy.rs", Wrong::Nothing(NOT_SHOWN), |_| Arc::new(stingy::Stingy)),
    attack!("starve", "starve.rs", Wrong::Rows, |_| Arc::new(starve::Starve),
        experts: Some(Fewest { columns: 1, active: 1, rows: 1 })),
    attack!("collapse", "collapse.rs", Wrong::Rows, |campaign| {
        Arc::new(collapse::Collapse { seed: campaign.seed })
    }, experts: Some(Fewest { columns: 2, active: 1, rows: 1 })),
    attack!("bomb", "bomb.rs", Wrong::Rows, |_| Arc::new(bomb::Bomb),
        experts: Some(Fewest { columns: 1, active: 1, rows: 1 })),
    attack!("top-one", "top_one.rs", Wrong::Rows, |_| Arc::new(top_one::TopOne),
        experts: Some(Fewest { columns: 2, active: 2, rows: 1 })),
    attack!("tie", "tie.rs", Wrong::Rows, |_| Arc::new(tie::Tie),
        experts: Some(Fewest { columns: 2, active: 1, rows: 1 })),
    attack!("pair", "pair.rs", Wrong::Sum, |_| Arc::new(pair::Pair), experts: Some(OF_ROWS)),
    attack!("capture", "capture.rs", Wrong::Rows, |campaign| Arc::new(capture::Capture { seed: campaign.seed }),
        experts: Some(OF_ROWS)),
    attack!("other-row", "other_row.rs", Wrong::Rows, |_| Arc::new(other_row::OtherRow), experts: Some(OF_ROWS)),
    attack!("stale-row", "stale_row.rs", Wrong::Rows, |_| Arc::<stale_row::StaleRow>::default(),
        prepares: stale_row::LAG, experts: Some(OF_ROWS)),
    attack!("pick", "pick.rs", Wrong::Rows, |_| Arc::new(pick::Pick), experts: Some(OF_ROWS)),
    attack!("row-nudge", "row_nudge.rs", Wrong::Block, |_| Arc::new(row_nudge::RowNudge), experts: Some(OF_ROWS)),
    attack!("drag", "drag.rs", Wrong::Nothing(ANOTHER_REDUCES), |_| Arc::new(drag::Drag), experts: Some(OF_ROWS)),
    attack!("drain", "drain.rs", Wrong::Nothing(DRAINED), |campaign| Arc::new(drain::Drain { from: campaign.from }),
        experts: Some(OF_ROWS)),
    attack!("squat", "squat.rs", Wrong::Nothing(UNPROVED), |_| Arc::new(squat::Squat), experts: Some(OF_ROWS)),
    attack!("teleport", "teleport.rs", Wrong::LaterRows, |_| Arc::new(teleport::Teleport), local: true),
    attack!("sandbag", "sandbag.rs", Wrong::Rows, |_| Arc::new(sandbag::Sandbag), local: true),
    attack!("wrong-rate", "rate.rs", Wrong::Rows, |_| Arc::new(rate::Rate), local: true),
    attack!("wrong-moments", "moments.rs"("its own"), Wrong::Rows, |_| Arc::new(moments::Moments::Wrong), local: true),
    attack!("poison-moments", "moments.rs"("the run's"), Wrong::Rows, |_| Arc::new(moments::Moments::Poisoned),
        local: true),
    attack!("edge", "edge.rs", Wrong::Rows, |_| Arc::new(edge::Edge), local: true),
    attack!("prefix", "prefix.rs", Wrong::Nothing(SHORTER), |_| Arc::new(prefix::Prefix), local: true),
    attack!("misanswer", "misanswer.rs"("false logits"), Wrong::Answers, |_| Arc::new(misanswer::Misanswer::Turned),
        calls: true),
    attack!("old-answer", "misanswer.rs"("those of an older state"), Wrong::Answers, |_| {
        Arc::new(misanswer::Misanswer::Old)
    }, calls: true),
    attack!("no-answer", "misanswer.rs"("nothing"), Wrong::Nothing(UNANSWERED), |_| {
        Arc::new(misanswer::Misanswer::Silent)
    }, calls: true),
];

impl Attack {
    /// What it does, in one line.
    pub fn about(&self) -> String {
        let first = self.source.lines().next().unwrap_or_default();
        let first = first.trim_start_matches("//! ").trim_end_matches('.');
        if self.variant.is_empty() { first.to_owned() } else { format!("{first} ({})", self.variant) }
    }

    /// Whether it is one on the experts of a mixture.
    pub fn wants_experts(&self) -> bool {
        self.experts.is_some()
    }

    /// Whether it is one on a run of several rows of experts.
    pub fn wants_rows(&self) -> bool {
        self.experts.is_some_and(|fewest| fewest.rows > 1)
    }

    /// Whether it is one on local updates.
    pub fn wants_local(&self) -> bool {
        self.local
    }

    /// Whether it is one on those who call.
    pub fn wants_calls(&self) -> bool {
        self.calls
    }

    /// Whether it can be played in this run.
    ///
    /// # Errors
    /// [`Misuse`] naming the attack, and what the run lacks.
    pub fn suits(&self, manifest: &Manifest) -> Result<(), Misuse> {
        let name = self.name;
        if self.local && manifest.local().is_none() {
            return Err(Misuse(format!(
                "{name}: the run has no local updates: give its settings a section [local]"
            )));
        }
        let Some(fewest) = self.experts else { return Ok(()) };
        let Some(mixture) = experts::mixture(&manifest.model) else {
            return Err(Misuse(format!("{name}: the run's model has no experts")));
        };
        let enough = |has: u16, least: u16, which: &str| {
            let why = || format!("{name}: the run's model has {has} {which}, and this attack needs {least}");
            if has < least { Err(Misuse(why())) } else { Ok(()) }
        };
        enough(mixture.columns, fewest.columns, "expert in a row")?;
        enough(mixture.active, fewest.active, "active expert")?;
        enough(mixture.rows, fewest.rows, "row of experts")
    }

    /// The conduct of a member that is honest until its campaign begins.
    pub fn conduct(&self, campaign: &Campaign) -> Arc<dyn NodeConduct> {
        let from = Round(campaign.from.0.saturating_sub(self.prepares));
        Arc::new(Timed { from, attack: (self.make)(campaign) })
    }
}

impl PartialEq for Attack {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Attack {}

impl FromStr for Attack {
    type Err = Misuse;

    fn from_str(name: &str) -> Result<Self, Misuse> {
        let found = ATTACKS.iter().find(|attack| attack.name == name).copied();
        found.ok_or_else(|| {
            let names: Vec<_> = ATTACKS.iter().map(|attack| attack.name).collect();
            Misuse(format!("no attack {name:?}; there are {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests;
