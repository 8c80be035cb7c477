//! Everything that members say to each other, as canonical bytes.
//!
//! What is signed is a [`crate::sign::Message`]; what only crosses one channel is a [`wire::Request`] or a
//! [`wire::Response`].

pub mod audit;
pub mod call;
pub mod enrol;
pub mod evidence;
pub mod gossip;
mod line;
pub mod offer;
pub mod record;
pub mod round;
pub mod service;
pub mod wire;

/// Calls `$list!` once, with every type that [`wire!`](crate::wire) declares, as `module::Type`. Whoever calls it imports the
/// modules. What names all types (vectors, properties, the fuzzer's kinds, `spec/schema.json`) is made of it; a test fails on a type
/// that is missing here.
#[macro_export]
macro_rules! for_each_message {
    ($list:ident) => {
        $list! {
            manifest::Tolerance, manifest::Exchange, manifest::Local, manifest::Aggregation,
            manifest::Model, manifest::Family, manifest::Decoder, manifest::Albert, manifest::Mixture,
            manifest::Variant, manifest::Scaling,
            manifest::Data, manifest::Start, manifest::CommittedFile, manifest::Tokeniser,
            manifest::TokeniserFile, manifest::Router, manifest::Training, manifest::Optimiser,
            manifest::Admission, manifest::Mode, manifest::Listed, manifest::Manifest, manifest::Audit,
            manifest::Timers, manifest::Retention, manifest::Rollback,
            certificate::Certificate,
            merkle::Proof,
            coins::CoinTerms, coins::CoinOpening,
            state::StateRoots,
            sketch::Sketch, sketch::TableRow,
            enrol::Invitation, enrol::Possession, enrol::Presented, enrol::Enrol, enrol::Return,
            enrol::Leave, enrol::Ready, enrol::CloseTree, enrol::Pass, enrol::Ticket,
            round::Route, round::Commit, round::CommitReceipt, round::Echo, round::Receipt,
            round::Delivered, round::DeliveryReceipt, round::PartResult, round::Checked,
            record::Record, record::Body, record::Seat, record::Freeze, record::Late, record::Inputs,
            record::Shares, record::ShareMove, record::Reassign, record::Reassigned, record::Outcome, record::RowStep, record::Credit,
            record::Ban, record::Idle, record::Rewind,
            audit::AuditRequest, audit::Duty, audit::TableSeal, audit::ResultsSeal, audit::TableOpening,
            audit::LeafResult, audit::Verdict, audit::Recomputation, audit::Recheck, audit::Withheld,
            audit::Opinion,
            evidence::Transcript, evidence::Equivocation, evidence::Total, evidence::OmittedCommit,
            evidence::OmittedDelivery, evidence::Reduction, evidence::Seal, evidence::TwoSeals,
            evidence::WrongRoot, evidence::SealedRound, evidence::Misconduct, evidence::FalseVerdict,
            evidence::FalseRecomputation, evidence::FalseAnswer, evidence::TwoResults, evidence::Evidence,
            call::Ask, call::Answer,
            gossip::Gossiped, gossip::Head, gossip::Whereabouts,
            service::Statement,
            offer::StateOffer, offer::StateQuery, offer::StatePiece,
            wire::Request, wire::Response, wire::Answered, wire::Follow, wire::News, wire::Notice,
            wire::BlockData, wire::PutBlocks, wire::BlockQuery, wire::InputQuery, wire::DataQuery,
            wire::RelayTerms,
        }
    };
}
