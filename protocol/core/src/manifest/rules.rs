//! Which manifests a run may have: every rule of `spec/manifest.md`, in its order. A refusal names field, rule and
//! value.

use core::fmt::Display;
use core::ops::RangeInclusive;
use std::collections::BTreeSet;

use super::{
    Admission, Albert, Data, Decoder, Family, Local, Manifest, Method, Mixture, Mode, Model, Projection,
    Rollback, Router, Scaling, Start, Tokeniser, Tolerance, VERSION, Variant,
};
use crate::codec::Real;
use crate::error::Misuse;
use crate::ids::MemberId;
use crate::limits;

/// A whole, in the shares of a manifest.
const MILLION: u32 = 1_000_000;

impl Manifest {
    /// Checks every rule that a manifest must keep.
    ///
    /// # Errors
    /// [`Misuse`] naming field, rule and value.
    pub fn check(&self) -> Result<(), Misuse> {
        // MANIFEST-2: version is 1; delay is 0, or 1 where the model is no mixture; groups are 0.
        require(self.version == VERSION, "version", "must be 1", self.version)?;
        within("delay", self.delay, 0..=1)?;
        let rule = "must be 0 in a mixture of experts, whose rows have steps of their own: set training.overlap to false";
        require(
            self.delay == 0 || !matches!(self.model.family, Family::Mixture(_)),
            "delay",
            rule,
            self.delay,
        )?;
        require(self.groups == 0, "groups", "is reserved and must be 0", self.groups)?;
        self.model.check()?;
        self.data.check(&self.model)?;
        self.check_windows()?;
        self.check_tolerance()?;
        // Before `training.leaves`, which is counted from the steps.
        self.check_local()?;
        self.check_training()?;
        self.check_branch()?;
        self.check_router()?;
        self.check_optimiser()?;
        self.check_aggregation()?;
        self.check_audit()?;
        self.admission.check(self.audit.share_ppm)?;
        self.check_rollback()?;
        self.check_coins()
    }

    /// MANIFEST-6: the training text has one window at least, of `sequence` + 1 tokens.
    fn check_windows(&self) -> Result<(), Misuse> {
        let rule = format!("must be below the training text's tokens, {}", self.data.tokens());
        require(self.windows() >= 1, "model.sequence", &rule, self.model.sequence)
    }

    /// TOL-5: each bound above 0 and at most 1/8; `exact` has none.
    fn check_tolerance(&self) -> Result<(), Misuse> {
        let Tolerance { groups, loss } = &self.tolerance;
        if self.profile.has_defined_bits() {
            let rule = "is for other profiles than exact, where leaves are equal";
            require(groups.is_empty(), "tolerance.groups", rule, format!("{} bounds", groups.len()))?;
            return require(*loss == Real::ZERO, "tolerance.loss", rule, loss.value());
        }
        // MANIFEST-14: a rounding may send a token to another expert, and no tolerance fits such a jump.
        let mixture = matches!(self.model.family, Family::Mixture(_));
        require(!mixture, "profile", "must be exact for a mixture of experts", self.profile.name())?;
        let rule = "is what profiles other than exact need: calibrate";
        require(!groups.is_empty(), "tolerance.groups", rule, "empty")?;
        let bounds = groups.iter().map(|bound| ("tolerance.groups", bound));
        for (field, bound) in bounds.chain([("tolerance.loss", loss)]) {
            let sound = bound.value() > 0.0 && bound.value() <= 0.125;
            require(sound, field, "must be above 0 and at most 0.125", bound.value())?;
        }
        Ok(())
    }

    /// MANIFEST-7: 1 to 2^24 rounds, 1 to 65,536 leaves, 1 to 1,024 windows of a leaf, `grid_bits` 1 to 14.
    fn check_training(&self) -> Result<(), Misuse> {
        let training = &self.training;
        within("training.rounds", training.rounds, 1..=limits::ROUNDS)?;
        within("training.leaves", training.leaves, 1..=1 << 16)?;
        within("training.leaf_windows", training.leaf_windows, 1..=limits::LEAF_WINDOWS)?;
        within("training.grid_bits", training.grid_bits, 1..=14)
    }

    /// MANIFEST-14: `branch` is below `rounds`, and 0 where `rows` is 1.
    fn check_branch(&self) -> Result<(), Misuse> {
        let Family::Mixture(Mixture { rows, branch, .. }) = self.model.family else { return Ok(()) };
        // One row that becomes one would be a second name of the same run.
        let one = rows != 1 || branch == 0;
        require(one, "experts.branch", "must be 0 where there is one row", branch)?;
        let rounds = self.training.rounds;
        let rule = format!("must be below training.rounds, {rounds}, or the rows never come to be");
        require(branch < rounds, "experts.branch", &rule, branch)?;
        self.check_held()
    }

    /// MANIFEST-16: `held` is 0 or below `few`; `lag` is at most `retention.contributions` and, where `held` is above 0, above
    /// the window A of AUDIT-26.
    fn check_held(&self) -> Result<(), Misuse> {
        let Family::Mixture(Mixture { few, held, lag, .. }) = self.model.family else { return Ok(()) };
        let rule =
            format!("must be 0 or below experts.few, {few}, or nobody inspects what waits for inspection");
        require(held == 0 || held < few, "experts.held", &rule, held)?;
        let (window, most) = (self.audit_window(), self.retention.contributions);
        let advice = if window < most {
            format!("set it to {}", window + 1)
        } else {
            "first set retention.states to at most retention.contributions, and then lag to as many as the latter".into()
        };
        let rule = format!("must be above {window}, for so many rounds may an audit take: {advice}");
        require(held == 0 || lag > window, "experts.lag", &rule, lag)?;
        let rule =
            format!("must be at most retention.contributions, {most}, for which rounds are remembered");
        require(lag <= most, "experts.lag", &rule, lag)
    }

    /// MANIFEST-17: `segment` is 1 to 1,024 and divides `steps`, which has 64 segments at most; `moments_every` is 1 to 2^16;
    /// `outer_rate` lies in (0, 16], `outer_momentum` in \[0, 1). The profile is exact, the method AdamW, and `training.leaves`
    /// is the number of segments.
    fn check_local(&self) -> Result<(), Misuse> {
        let Some(local) = self.local() else { return Ok(()) };
        let Local { steps, segment, moments_every, outer_rate, outer_momentum } = local;
        within("local.segment", *segment, 1..=limits::SEGMENT_STEPS)?;
        let whole = *steps > 0 && steps.is_multiple_of(*segment);
        require(whole, "local.steps", &format!("must be a multiple of local.segment, {segment}"), steps)?;
        let rule = format!("must be at most {} segments of {segment} steps", limits::SEGMENTS);
        require(local.segments() <= limits::SEGMENTS, "local.steps", &rule, steps)?;
        within("local.moments_every", *moments_every, 1..=1 << 16)?;
        let rate = outer_rate.value();
        require(rate > 0.0 && rate <= 16.0, "local.outer_rate", "must be above 0 and at most 16", rate)?;
        let momentum = outer_momentum.value();
        require((0.0..1.0).contains(&momentum), "local.outer_momentum", "must lie in [0, 1)", momentum)?;
        // Roundings of a chain add up over its steps, and no tolerance has been measured for that.
        let exact = self.profile.has_defined_bits();
        require(
            exact,
            "profile",
            "must be exact where steps are local: nobody has calibrated another",
            self.profile.name(),
        )?;
        let adam = self.optimiser.method == Method::AdamW;
        require(adam, "optimiser.method", "must be adamw where steps are local", "lamb")?;
        let rule = format!("must be the segments of a member, {}, where steps are local", local.segments());
        require(self.training.leaves == local.segments(), "training.leaves", &rule, self.training.leaves)
    }

    /// MANIFEST-15: a model with several rows has a router with as many; any other has none.
    fn check_router(&self) -> Result<(), Misuse> {
        let (rows, routed) = (self.model.rows(), self.data.router.as_ref().map_or(1, |router| router.rows));
        if rows == routed {
            return Ok(());
        }
        // Windows without a row could be trained by nobody, and a table that nobody reads would be fetched by all.
        Err(Misuse(format!(
            "data.router says that the text was packed for {routed} rows of experts, and the model has {rows}: set experts.rows, or \
             pack the text with `muster data pack --rows {rows}` (without --rows for one)"
        )))
    }

    /// MANIFEST-8: `beta1` and `beta2` lie in \[0, 1); `epsilon` and `rate` are above 0; `minimum_rate`,
    /// `weight_decay` and `clip_norm` are 0 or more.
    fn check_optimiser(&self) -> Result<(), Misuse> {
        let optimiser = &self.optimiser;
        for (field, beta) in [("optimiser.beta1", optimiser.beta1), ("optimiser.beta2", optimiser.beta2)] {
            require((0.0..1.0).contains(&beta.value()), field, "must lie in [0, 1)", beta.value())?;
        }
        positive("optimiser.epsilon", optimiser.epsilon)?;
        positive("optimiser.rate", optimiser.rate)?;
        let rest = [
            ("optimiser.minimum_rate", optimiser.minimum_rate),
            ("optimiser.weight_decay", optimiser.weight_decay),
            ("optimiser.clip_norm", optimiser.clip_norm),
        ];
        rest.into_iter().try_for_each(|(field, value)| not_negative(field, value))
    }

    /// MANIFEST-9: `radius` is above 0; at most 64 iterations; `cap_ppm` 1 to 10^6; `assumed_ppm` below half of 10^6;
    /// 1 or 2 replicas; `result_bits` at most `grid_bits`.
    fn check_aggregation(&self) -> Result<(), Misuse> {
        let aggregation = &self.aggregation;
        positive("aggregation.radius", aggregation.radius)?;
        within("aggregation.iterations", aggregation.iterations, 0..=64)?;
        within("aggregation.cap_ppm", aggregation.cap_ppm, 1..=MILLION)?;
        within("aggregation.replicas", aggregation.replicas, 1..=2)?;
        let (bits, most) = (aggregation.result_bits, self.training.grid_bits);
        let rule = format!("must be at most training.grid_bits, {most}");
        require(bits <= most, "aggregation.result_bits", &rule, bits)?;
        let (minority, assumed) = (aggregation.assumed_ppm < MILLION / 2, aggregation.assumed_ppm);
        let rule = "must be below 500000: no rule withstands a majority";
        require(minority, "aggregation.assumed_ppm", rule, assumed)
    }

    /// MANIFEST-10: shares are at most 10^6; an audit draws 1 to 32 leaves; `coin_lead` is 1 at least;
    /// `retention.states`, less `delay`, is 2 at least and above `final_rounds`, `retention.contributions` no less than that; all
    /// timers are above 0.
    fn check_audit(&self) -> Result<(), Misuse> {
        let (audit, retention, timers) = (&self.audit, &self.retention, &self.timers);
        within("audit.share_ppm", audit.share_ppm, 0..=MILLION)?;
        within("audit.recheck_ppm", audit.recheck_ppm, 0..=MILLION)?;
        within("audit.blocks_ppm", audit.blocks_ppm, 0..=MILLION)?;
        within("audit.leaves", usize::from(audit.leaves), 1..=limits::AUDIT_LEAVES)?;
        let rule = "must be at least 1, or coins could be chosen after the freeze they are used with";
        require(audit.coin_lead >= 1, "audit.coin_lead", rule, audit.coin_lead)?;
        // One is the newest: with it alone no audit would have a state to compute on. With a delay that state is one older.
        let delay = u32::from(self.delay);
        let rule = format!("must be at least {}", 2 + delay);
        require(retention.states >= 2 + delay, "retention.states", &rule, retention.states)?;
        let last = audit.final_rounds;
        let rule = format!("must be within retention.contributions, {}", retention.contributions);
        require(last <= retention.contributions, "audit.final_rounds", &rule, last)?;
        let at_hand = retention.states - delay;
        let rule = match delay {
            0 => format!("must be below retention.states, {}", retention.states),
            _ => format!("must be below {at_hand}, of retention.states one less where updates are delayed"),
        };
        require(last < at_hand, "audit.final_rounds", &rule, last)?;
        let timers = [
            ("timers.commit", timers.commit),
            ("timers.part", timers.part),
            ("timers.result", timers.result),
            ("timers.audit", timers.audit),
            ("timers.final_audit", timers.final_audit),
        ];
        timers.into_iter().try_for_each(|(field, wait)| require(wait > 0, field, "must be positive", wait))
    }

    /// MANIFEST-12: `rollback.limit` is 0 or more; above 0, `most_rounds` is 1 at least and no more than either
    /// retention, and `spacing` is above `most_rounds`.
    fn check_rollback(&self) -> Result<(), Misuse> {
        let Rollback { limit, most_rounds, spacing } = &self.rollback;
        not_negative("rollback.limit", *limit)?;
        if !self.rollback.is_on() {
            return Ok(());
        }
        let kept = self.retention.states.min(self.retention.contributions);
        let rule =
            format!("must be at least 1 and within retention.states and retention.contributions, {kept}");
        require((1..=kept).contains(most_rounds), "rollback.most_rounds", &rule, most_rounds)?;
        let rule = format!(
            "must be above rollback.most_rounds, {most_rounds}, or the run could go back again and again"
        );
        require(spacing > most_rounds, "rollback.spacing", &rule, spacing)
    }

    /// MANIFEST-13: where anything is audited, a verifier can register coins for every round that there may be, and for
    /// the rechecks after it.
    fn check_coins(&self) -> Result<(), Misuse> {
        if !self.is_audited() {
            return Ok(());
        }
        let each = 1 + u64::from(self.admission.most_members).min(limits::SEATS as u64);
        let last = u64::from(self.retention.contributions.max(1)) + 1;
        // A run that may go back has twice as many rounds as it trains.
        let times = if self.rollback.is_on() { 2 } else { 1 };
        let rounds = limits::COINS / each;
        let rule = format!(
            "must be below {}, or verifiers have no coins for the first round: they register {each} for each of at most {rounds} \
             rounds, and the last ones are for what is rechecked while contributions are kept",
            rounds.saturating_sub(times)
        );
        let kept = self.retention.contributions;
        require(last + times <= rounds, "retention.contributions", &rule, kept)?;
        let most = (rounds - last) / times;
        let rule = format!(
            "must be at most {most} here, or verifiers' coins run out and nothing is audited any more: they register \
             {each} for each of at most {rounds} rounds; lower admission.most_members, or train fewer rounds and go on in \
             another run (--init)"
        );
        require(u64::from(self.training.rounds) <= most, "training.rounds", &rule, self.training.rounds)
    }

    /// Whether there is anything that a verifier may have to do.
    fn is_audited(&self) -> bool {
        let audit = &self.audit;
        let shares = [audit.share_ppm, audit.blocks_ppm, audit.final_rounds, self.admission.newcomer_ppm];
        self.admission.start_verifiers > 0 || shares.iter().any(|share| *share > 0)
    }
}

impl Model {
    /// Checks the shape.
    ///
    /// # Errors
    /// [`Misuse`] naming field, rule and value.
    pub fn check(&self) -> Result<(), Misuse> {
        // MANIFEST-3: vocabulary and hidden are 2 to 2^20, width and heads 1 to 2^20, layers 1 to 256, sequence 1 to
        // 2^16; norm_epsilon is above 0, initial_scale above 0 and at most 16; heads divides width, but in a variant; d is 2^33
        // at most.
        within("model.vocabulary", self.vocabulary, 2..=1 << 20)?;
        within("model.width", self.width, 1..=1 << 20)?;
        within("model.layers", self.layers, 1..=256)?;
        within("model.heads", self.heads, 1..=1 << 20)?;
        within("model.hidden", self.hidden, 2..=1 << 20)?;
        within("model.sequence", self.sequence, 1..=limits::SEQUENCE)?;
        positive("model.norm_epsilon", self.norm_epsilon)?;
        let scale = self.initial_scale.value();
        let rule = "must be above 0 and at most 16";
        require(scale > 0.0 && scale <= 16.0, "model.initial_scale", rule, scale)?;
        if self.variant().is_none() {
            divides("model.heads", self.heads, "model.width", self.width)?;
        }
        match &self.family {
            Family::Decoder(decoder) => decoder.check(self)?,
            Family::Albert(albert) => albert.check(self)?,
            Family::Mixture(mixture) => mixture.check(self)?,
            Family::Variant(variant) => variant.check(self)?,
        }
        // Of all rows: whoever keeps them keeps so many.
        let count = self.all_parameters();
        let rule = "has more than 2^33 parameters: lower vocabulary, width, layers, key_value_heads, hidden or embedding, or columns, \
                    shared_hidden or rows of its experts";
        require(count <= limits::PARAMETERS, "model", rule, count)
    }
}

impl Decoder {
    /// MANIFEST-4: `key_value_heads` divides `heads`; width / heads is even; `rope_base` is 1 at least.
    fn check(&self, model: &Model) -> Result<(), Misuse> {
        self.check_heads(model)?;
        let head = model.width / model.heads;
        let rule = format!("must leave an even head width for rotary positions, not {head}");
        require(head.is_multiple_of(2), "model.heads", &rule, model.heads)
    }

    /// What holds for heads of any width.
    fn check_heads(&self, model: &Model) -> Result<(), Misuse> {
        let (own, rule) = (self.key_value_heads, format!("must be 1 to model.heads, {}", model.heads));
        require((1..=model.heads).contains(&own), "model.key_value_heads", &rule, own)?;
        divides("model.key_value_heads", self.key_value_heads, "model.heads", model.heads)?;
        let base = self.rope_base.value();
        require(base >= 1.0, "model.rope_base", "must be at least 1", base)
    }
}

impl Variant {
    /// MANIFEST-18: `head_width` is even, 2 to 2^16, and `heads` of it 2^20 at most; `factor` is above 1, `low` above 0 and below
    /// `high`, `original` 1 at least. One thing at least is other than in a plain decoder.
    fn check(&self, model: &Model) -> Result<(), Misuse> {
        let Self { decoder, head_width, projection, scaling } = self;
        decoder.check_heads(model)?;
        within("model.head_width", *head_width, 2..=1 << 16)?;
        let rule = "must be even: positions turn pairs";
        require(head_width.is_multiple_of(2), "model.head_width", rule, head_width)?;
        let rule = format!("must give model.heads, {}, a width of 2^20 at most together", model.heads);
        require(head_width.saturating_mul(model.heads) <= 1 << 20, "model.head_width", &rule, head_width)?;
        if let Some(Scaling { factor, low, high, original }) = scaling {
            let factor = factor.value();
            require(factor > 1.0, "model.rope_factor", "must be above 1 where positions are scaled", factor)?;
            positive("model.rope_low", *low)?;
            let (low, high) = (low.value(), high.value());
            let rule = format!("must be above model.rope_low, {low}");
            require(low < high, "model.rope_high", &rule, high)?;
            require(*original >= 1, "model.rope_original", "must be at least 1", original)?;
        }
        // A plain decoder under a second name would be a second run of the same settings.
        let own = u64::from(*head_width) * u64::from(model.heads) != u64::from(model.width);
        let rule =
            "must not be what width and heads give, where nothing else is other than in a plain decoder";
        let other = own || *projection != Projection::Plain || scaling.is_some();
        require(other, "model.head_width", rule, head_width)
    }
}

impl Mixture {
    /// MANIFEST-14: 1 to 256 columns, of which 1 at least is active; `shared_hidden` is 2 to 2^20; `balance` is 0 or
    /// more, `trust` 1 or more; 1 to 64 rows; the model has 16,384 tensors at most. Its decoder is bound by MANIFEST-4.
    fn check(&self, model: &Model) -> Result<(), Misuse> {
        self.decoder.check(model)?;
        within("experts.columns", self.columns, 1..=limits::COLUMNS)?;
        let rule = format!("must be 1 to experts.columns, {}", self.columns);
        require((1..=self.columns).contains(&self.active), "experts.active", &rule, self.active)?;
        within("experts.shared_hidden", self.shared_hidden, 2..=1 << 20)?;
        within("experts.rows", self.rows, 1..=limits::ROWS)?;
        not_negative("experts.balance", self.balance)?;
        let trust = self.trust.value();
        require(
            trust >= 1.0,
            "experts.trust",
            "must be at least 1, or experts learn less in each round",
            trust,
        )?;
        // Of a layer: 6 around the feed-forward, 4 of the shared expert, the router, 3 of each other expert.
        let tensors = 3 + model.layers as usize * (11 + 3 * usize::from(self.columns));
        let rule = format!("must leave the model at most {} tensors, not {tensors}", limits::TENSORS);
        require(tensors <= limits::TENSORS, "experts.columns", &rule, self.columns)
    }
}

impl Albert {
    /// MANIFEST-5: `embedding` is 1 to 2^20, `masked_ppm` 1 to 10^6, `mask_token` below the vocabulary.
    fn check(&self, model: &Model) -> Result<(), Misuse> {
        within("model.embedding", self.embedding, 1..=1 << 20)?;
        let masked = f64::from(self.masked_ppm) / f64::from(MILLION);
        require((1..=MILLION).contains(&self.masked_ppm), "model.masked", "must lie in (0, 1]", masked)?;
        let rule = format!("must lie below model.vocabulary, {}", model.vocabulary);
        require(self.mask_token < model.vocabulary, "model.mask_token", &rule, self.mask_token)
    }
}

impl Data {
    /// Checks sizes, and the vocabulary against the tokeniser's. Models pad theirs to round numbers: some more kinds
    /// are good, fewer or many more are another tokeniser's.
    fn check(&self, model: &Model) -> Result<(), Misuse> {
        let kinds = self.kinds();
        // MANIFEST-6: each text has 2^40 bytes at most, and whole tokens; they are of 2 to 2^20 kinds, the vocabulary
        // of so many or up to 1,023 more.
        for (field, bytes) in [("data.bytes", self.bytes), ("data.held_out_bytes", self.held_out_bytes)] {
            within(field, bytes, 0..=limits::DATA_BYTES)?;
            let rule = format!("must be whole tokens of {}", self.token_bytes());
            require(bytes.is_multiple_of(self.token_bytes()), field, &rule, bytes)?;
        }
        require((2..=1 << 20).contains(&kinds), "data.tokeniser", "must know 2 to 2^20 tokens", kinds)?;
        let matches = (kinds..=kinds + limits::PADDED_TOKENS).contains(&model.vocabulary);
        if !matches {
            return Err(Misuse(format!(
                "model.vocabulary is {}, but the text's tokens are of {kinds} kinds: it must be {kinds}, or up to \
                 {} more where a model pads it",
                model.vocabulary,
                limits::PADDED_TOKENS
            )));
        }
        if let Tokeniser::File(file) = &self.tokeniser {
            // DATA-4: a tokeniser's file is not empty, and within the limit.
            within("data.tokeniser.bytes", file.bytes, 1..=limits::TOKENISER_BYTES)?;
        }
        self.router.as_ref().map_or(Ok(()), Router::check)?;
        let Start::Given(file) = &self.start else { return Ok(()) };
        // DATA-6: a manifest whose file has another length than 4·d is refused.
        let whole = 4 * model.parameters();
        let rule = format!("must be four for each parameter of the model, {whole}");
        require(file.bytes == whole, "data.start.bytes", &rule, file.bytes)
    }
}

impl Router {
    /// DATA-8: a router has 2 to 64 rows, and reads 1 to 4,096 tokens.
    fn check(&self) -> Result<(), Misuse> {
        within("data.router.rows", self.rows, 2..=limits::ROWS)?;
        within("data.router.tokens", self.tokens, 1..=limits::ROUTE_TOKENS)
    }
}

impl Admission {
    /// MANIFEST-11: `start_nodes`, `per_round` and `halving` are 1 at least; `most_members` is 1 to 4,096 and no less
    /// than `start_nodes` + `start_verifiers`; `probation` is 2^24 at most, `vouchers` 1 to 16, `depth` 16 at most,
    /// `newcomer_ppm` 10^6 at most; where there is a probation, `vouchers` is 2 at least and some
    /// contributions are audited; no key is listed twice.
    fn check(&self, share_ppm: u32) -> Result<(), Misuse> {
        require(self.start_nodes >= 1, "admission.start_nodes", "must be at least 1", self.start_nodes)?;
        within("admission.most_members", usize::from(self.most_members), 1..=limits::MEMBERS)?;
        // As u32: two u16 may not fit one.
        let start = u32::from(self.start_nodes) + u32::from(self.start_verifiers);
        let rule = format!(
            "must be at least start_nodes and start_verifiers together, {start}, or the run never starts"
        );
        require(start <= self.most_members.into(), "admission.most_members", &rule, self.most_members)?;
        require(self.per_round >= 1, "admission.per_round", "must be at least 1", self.per_round)?;
        within("admission.probation", self.probation, 0..=1 << 24)?;
        within("admission.vouchers", self.vouchers, 1..=16)?;
        let several = self.probation == 0 || self.vouchers >= 2;
        let rule = "must be at least 2 with a probation, or one verifier that lies ends it";
        require(several, "admission.vouchers", rule, self.vouchers)?;
        within("admission.depth", self.depth, 0..=limits::INVITATION_DEPTH)?;
        within("admission.newcomer_ppm", self.newcomer_ppm, 0..=MILLION)?;
        require(self.halving >= 1, "admission.halving", "must be at least 1", self.halving)?;
        let ends = self.probation == 0 || self.newcomer_ppm.max(share_ppm) > 0;
        let rule = "never ends when nobody is audited: raise audit.share or admission.newcomer_share";
        require(ends, "admission.probation", rule, self.probation)?;
        // STAND-7: in open mode nothing but probation prices a new identity.
        let priced = self.mode != Mode::Open || self.probation > 0;
        require(priced, "admission.probation", "must be positive in open mode", self.probation)?;
        let Mode::Listed(listed) = &self.mode else { return Ok(()) };
        let mut seen = BTreeSet::new();
        let keys = || listed.founders.iter().chain(&listed.nodes).chain(&listed.verifiers);
        // A key listed as founder and as verifier would have two roles.
        let again: Option<&MemberId> = keys().find(|key| !seen.insert(**key));
        again.map_or(Ok(()), |key| Err(Misuse(format!("admission.mode lists a key twice; it is {key:#}"))))
    }
}

fn require(holds: bool, field: &str, rule: &str, value: impl Display) -> Result<(), Misuse> {
    if holds { Ok(()) } else { Err(Misuse(format!("{field} {rule}; it is {value}"))) }
}

fn within<T: PartialOrd + Display>(field: &str, value: T, range: RangeInclusive<T>) -> Result<(), Misuse> {
    let rule = format!("must be {} to {}", range.start(), range.end());
    require(range.contains(&value), field, &rule, value)
}

fn positive(field: &str, value: Real) -> Result<(), Misuse> {
    require(value.value() > 0.0, field, "must be positive", value.value())
}

fn not_negative(field: &str, value: Real) -> Result<(), Misuse> {
    require(value.value() >= 0.0, field, "must not be negative", value.value())
}

fn divides(field: &str, value: u32, whole: &str, size: u32) -> Result<(), Misuse> {
    require(size.is_multiple_of(value), field, &format!("must divide {whole}, {size}"), value)
}

#[cfg(test)]
mod tests;
