//! What is to be computed for audits, and the results.

use std::sync::Arc;

use muster_core::audit::Judgement;
use muster_core::contribution::PackedContribution;
use muster_core::ids::{Digest, MemberId};
use muster_core::messages::audit::Results;
use muster_core::messages::evidence::Evidence;
use muster_core::sketch::Probe;

use super::subject::Subject;

/// What is to be computed, off the thread that follows.
#[derive(Clone, Debug)]
pub struct Work {
    /// The contribution that it is about.
    pub subject: Arc<Subject>,
    /// The kind of work.
    pub kind: WorkKind,
}

/// Kinds of work.
#[derive(Clone, Debug)]
pub enum WorkKind {
    /// Recompute the drawn leaves. Answered by [`Done::Leaves`].
    Leaves(DrawnLeaves),
    /// Fetch the committed integers, or else recompute them all. Answered by [`Done::Contribution`] or
    /// [`Done::Summed`].
    Contribution,
    /// Recompute all leaves. Answered by [`Done::Summed`].
    Everything,
    /// Judge this evidence on another code path. Answered by [`Done::Opinion`].
    SecondOpinion(Box<Evidence>, Option<Arc<PackedContribution>>),
    /// Judge another verifier by its verdict. Answered by [`Done::Opinion`], or by [`Done::Suspicion`].
    Recheck(Box<Evidence>),
    /// Likewise, on the second code path, by the same integers. Answered by [`Done::Opinion`].
    SecondRecheck(Box<Evidence>, Option<Arc<PackedContribution>>),
    /// Judge evidence as a juror. Answered by [`Done::Opinion`].
    Opinion(Box<Evidence>),
}

/// Leaves that were drawn.
#[derive(Clone, Debug)]
pub struct DrawnLeaves {
    /// Seal of the table that drew them.
    pub seal: Digest,
    /// Where they are.
    pub positions: Vec<u32>,
    /// What they are sketched with.
    pub probe: Arc<Probe>,
}

/// The result of work.
#[derive(Debug)]
pub enum Done {
    /// The recomputed leaves in order.
    Leaves(Results),
    /// The committed integers, proved against the commitment.
    Contribution(Arc<PackedContribution>),
    /// The committed integers are unavailable, and nothing can stand for them.
    Withheld,
    /// The sum of all recomputed leaves, and whether what was committed agrees with it.
    Summed(Arc<PackedContribution>, bool),
    /// What re-executing evidence gave.
    Opinion(Judgement),
    /// Whom a rechecked verdict convicts, and the integers by which it does: a member that shows them once need not show them
    /// again.
    Suspicion(MemberId, Option<Arc<PackedContribution>>),
    /// It could not be done; what is missing.
    Missing(String),
}
