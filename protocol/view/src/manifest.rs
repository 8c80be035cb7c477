//! The manifest in words.

use muster_core::manifest::{
    Family, Manifest, Method, Mode, Profile, Projection, Rule, Schedule, Start, Variant,
};

use crate::plot::shown;
use crate::words::counted;

/// What members agree on, a heading and its sentences at a time.
pub(crate) fn words(manifest: &Manifest) -> Vec<(&'static str, Vec<String>)> {
    vec![
        ("Model", model(manifest)),
        ("Training", training(manifest)),
        ("Arithmetic", vec![profile(manifest.profile).into()]),
        ("Combining", combining(manifest)),
        ("Audits", audits(manifest)),
        ("Members", members(manifest)),
        ("Patience", patience(manifest)),
    ]
}

fn percent(ppm: u32) -> String {
    format!("{} %", shown(f64::from(ppm) / 1e4))
}

fn model(manifest: &Manifest) -> Vec<String> {
    let model = &manifest.model;
    let family = match &model.family {
        Family::Decoder(_) => "a decoder of the Llama kind",
        Family::Albert(_) => "an encoder of the ALBERT kind, trained on masked tokens",
        Family::Mixture(_) => "a decoder with a mixture of experts",
        Family::Variant(_) => "a decoder of the Llama kind with an attention of its own",
    };
    let mut text = vec![format!(
        "The model is {family} with {} parameters: width {}, {}, {}, hidden width {}, sequences of {} tokens, \
         {} kinds of tokens.",
        shown(model.all_parameters() as f64),
        model.width,
        counted(model.layers, "layer"),
        counted(model.heads, "head"),
        model.hidden,
        model.sequence,
        model.vocabulary
    )];
    if let Some(variant) = model.variant() {
        text.push(attention(variant));
    }
    if let Family::Mixture(mixture) = &model.family {
        text.push(format!(
            "Each layer has {} experts, of which {} compute a token. There are {} rows of experts; a node holds one of them.",
            mixture.columns, mixture.active, mixture.rows
        ));
    }
    text.push(match manifest.data.start {
        Start::Drawn => "Its first parameters are drawn by public randomness.".into(),
        Start::Given(_) => {
            "It begins with the parameters of a file that the manifest names by its root.".into()
        }
    });
    text
}

fn attention(variant: &Variant) -> String {
    let projection = match variant.projection {
        Projection::Plain => "queries, keys and values have no biases",
        Projection::Biased => "queries, keys and values have biases",
        Projection::Normed => "each head of queries and keys has a norm",
    };
    let positions = variant.scaling.as_ref().map_or_else(String::new, |scaling| {
        let (factor, original) = (shown(scaling.factor.value().into()), scaling.original);
        format!(
            " Slow rotary frequencies are divided by {factor}, for windows longer than {original} tokens."
        )
    });
    format!("Heads are {} wide; {projection}.{positions}", variant.head_width)
}

fn training(manifest: &Manifest) -> Vec<String> {
    let (training, optimiser) = (&manifest.training, &manifest.optimiser);
    let method = match optimiser.method {
        Method::AdamW => "AdamW",
        Method::Lamb => "LAMB",
    };
    let falls = match optimiser.schedule {
        Schedule::Constant => "stays",
        Schedule::Cosine => "falls along a cosine",
        Schedule::Linear => "falls in a straight line",
    };
    let mut text = vec![
        format!(
            "{} of {}; a leaf is the gradient of {} of text.",
            counted(training.rounds, "round"),
            counted(training.leaves, "leaf"),
            counted(training.leaf_windows, "window")
        ),
        format!(
            "The optimiser is {method}. Its rate rises to {} over {} and then {falls}.",
            shown(optimiser.rate.value().into()),
            counted(optimiser.warmup, "round")
        ),
        format!("Gradients lie on a grid of {} bits before they are summed.", training.grid_bits),
        format!(
            "The text has {} bytes, and {} bytes that are held out. Its Merkle root is {:#}.",
            shown(manifest.data.bytes as f64),
            shown(manifest.data.held_out_bytes as f64),
            manifest.data.root
        ),
    ];
    if let Some(local) = manifest.local() {
        text.push(format!(
            "In a round each node takes {} of its own, in segments of {}; what they exchange is the difference. The run's own \
             step has a rate of {} and a momentum of {}.",
            counted(local.steps, "step"),
            local.segment,
            shown(local.outer_rate.value().into()),
            shown(local.outer_momentum.value().into())
        ));
    }
    if manifest.delay > 0 {
        text.push("An update is applied one round late, so that members compute while it travels.".into());
    }
    text
}

fn profile(profile: Profile) -> &'static str {
    match profile {
        Profile::Exact => {
            "Every result has the same bits on every machine: a drawn leaf is compared for equality, and the whole run can be \
             replayed to the last bit."
        }
        Profile::F32 => {
            "Gradients are computed in f32 and compared within measured tolerances; jurors decide."
        }
        Profile::Tf32 => {
            "Gradients are computed in TF32 and compared within measured tolerances; jurors decide."
        }
        Profile::Bf16 => {
            "Gradients are computed in bf16 and compared within measured tolerances; jurors decide."
        }
    }
}

fn combining(manifest: &Manifest) -> Vec<String> {
    let aggregation = &manifest.aggregation;
    let rule = match aggregation.rule {
        Rule::CenteredClip => {
            "centred clipping: a mean in which each contribution counts up to a distance from the centre that the contributions \
             themselves set"
        }
        Rule::Mean => "the mean, which an outlier moves as far as it likes",
        Rule::Median => "the median of each coefficient",
        Rule::TrimmedMean => "the mean of what is left when the outermost values are cut off",
        Rule::GeometricMedian => "the geometric median",
        Rule::Krum => "Krum: the contribution that is nearest to its neighbours",
        Rule::MultiKrum => "Multi-Krum: the mean of the contributions that are nearest to their neighbours",
        Rule::FixedRadiusClip => "centred clipping with one fixed radius",
    };
    let each = if aggregation.replicas > 1 { "two members, whose results must agree" } else { "one member" };
    vec![
        format!("Contributions are combined by {rule}."),
        weight(aggregation.cap_ppm),
        format!(
            "Each part is combined by {each}, and every contributor compares the result with its own contribution."
        ),
    ]
}

/// How much of a round's weight one member may have: at least an equal share, so that few members can train at all.
fn weight(cap_ppm: u32) -> String {
    let enough = 1_000_000u32.div_ceil(cap_ppm.max(1));
    match cap_ppm {
        1_000_000.. => "A member's weight is as large as the work that it did.".into(),
        _ => format!(
            "Where {enough} members or more count, none has more than {} of a round's weight; where fewer do, each has an equal \
             share at most.",
            percent(cap_ppm)
        ),
    }
}

fn audits(manifest: &Manifest) -> Vec<String> {
    let (audit, admission) = (&manifest.audit, &manifest.admission);
    let mut text = vec![
        format!(
            "A verifier audits a contribution with a probability of {}, by a coin that was fixed long before, and recomputes at \
             least {} of its leaves.",
            percent(audit.share_ppm),
            audit.leaves
        ),
        format!(
            "{} of the verdicts that pass are re-executed by another verifier, and {} of the combined blocks.",
            percent(audit.recheck_ppm),
            percent(audit.blocks_ppm)
        ),
    ];
    if audit.final_rounds > 0 {
        let last = match audit.final_rounds {
            1 => "In the last round".into(),
            rounds => format!("In the last {rounds} rounds"),
        };
        text.push(format!("{last} every contribution is audited."));
    }
    if admission.newcomer_ppm > 0 {
        text.push(format!(
            "A newcomer is audited with a probability of {}.",
            percent(admission.newcomer_ppm)
        ));
    }
    if manifest.rollback.is_on() {
        text.push(format!(
            "When a convict has moved the aggregates by more than {} in all, the state goes back, by at most {}.",
            shown(manifest.rollback.limit.value().into()),
            counted(manifest.rollback.most_rounds, "round")
        ));
    }
    text
}

fn members(manifest: &Manifest) -> Vec<String> {
    let admission = &manifest.admission;
    let come = match &admission.mode {
        Mode::Invited => "Members come by invitations.",
        Mode::Listed(_) => "The manifest lists who may come.",
        Mode::Open => "Everybody may come.",
    };
    let mut text = vec![
        come.to_owned(),
        format!(
            "Rounds begin with {} and {}; the run admits {} at most.",
            counted(admission.start_nodes, "node"),
            counted(admission.start_verifiers, "verifier"),
            counted(admission.most_members, "member")
        ),
    ];
    if admission.probation > 0 {
        text.push(format!(
            "A newcomer has no weight before verifiers have recomputed {} of its leaves and found them right.",
            admission.probation
        ));
    }
    if admission.member_invites > 0 {
        text.push(format!(
            "A member may bring in {}, in chains of at most {}.",
            match admission.member_invites {
                1 => "one other".into(),
                others => format!("{others} others"),
            },
            admission.depth
        ));
    }
    text
}

fn patience(manifest: &Manifest) -> Vec<String> {
    let timers = &manifest.timers;
    let seconds = |timer: u32| shown(f64::from(timer) / 1000.0);
    vec![format!(
        "A round waits at most {} s for commitments, {} s for deliveries and {} s for results; an audit {} s for each answer.",
        seconds(timers.commit),
        seconds(timers.part),
        seconds(timers.result),
        seconds(timers.audit)
    )]
}

#[cfg(test)]
mod tests {
    use super::weight;

    #[test]
    fn the_bound_on_a_weight_is_true_of_few_members_as_well() {
        use muster_core::aggregate::weights;
        let said = weight(200_000);
        assert!(
            said.contains("5 members or more") && said.contains("20 %") && said.contains("equal share"),
            "{said}"
        );
        let share = |leaves: &[u32]| {
            let weights = weights(leaves, 200_000);
            *weights.iter().max().unwrap() as f64 / weights.iter().sum::<u64>() as f64
        };
        assert!(share(&[9, 1, 1, 1, 1]) <= 0.2 && share(&[9, 1, 1, 1]) <= 0.25);
        assert!(share(&[4, 4, 4, 4]) > 0.2, "which is why the sentence has its second half");
        assert!(weight(1_000_000).contains("as large as"));
    }
}
