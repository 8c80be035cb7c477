//! What goes to one peer beside each other, over real sockets of this machine.
#![allow(clippy::unwrap_used)] // the helpers, too, are tests

use std::sync::Arc;
use std::time::Duration;

use muster_core::codec::{decode, encode};
use muster_core::ids::{Digest, Height, MemberId, RunId};
use muster_core::messages::enrol::Return;
use muster_core::messages::wire::{Notice, Request, Response};
use muster_core::sign::Identity;
use muster_net::endpoint::Endpoint;
use muster_net::listener::Listener;
use muster_net::seats::ConnectionLimit;
use muster_net::serve::{Unanswered, serve};
use muster_replica::{Contact, Peers};
use tokio::time::timeout;

/// A steward that dials a member back before it answers its Return, for longer than anything here waits.
async fn dials_back(_: MemberId, request: Vec<u8>) -> Result<Vec<u8>, Unanswered> {
    if let Ok(Request::Notice(_)) = decode(&request) {
        std::future::pending::<()>().await;
    }
    Ok(encode(&Response::Done))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_return_that_waits_to_be_dialled_back_holds_up_nothing_else() {
    let [member, steward] = [1, 2].map(|name| Arc::new(Identity::from_secret(&[name; 32])));
    let run = RunId(Digest([1; 32]));
    let listener = Listener::bind("127.0.0.1:0", ConnectionLimit::default()).await.unwrap();
    let contact = Contact { member: steward.id(), addresses: vec![listener.local_addr().to_string()] };
    let server = Endpoint::new(run, steward);
    tokio::spawn(serve(listener, server, Arc::new(dials_back), std::future::pending()));

    let back = Return { height: Height(0), addresses: Default::default(), engagement: Default::default() };
    let back = Request::Notice(Notice::Return(member.sign(run, &back)));
    let peers = Arc::new(Peers::new(Endpoint::new(run, member)));
    let returning = tokio::spawn({
        let (peers, contact) = (peers.clone(), contact.clone());
        async move { peers.ask(&contact, &back).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let answer = timeout(Duration::from_secs(5), peers.ask(&contact, &Request::Manifest)).await;
    assert_eq!(answer.expect("an answer meanwhile").unwrap(), Response::Done);
    assert!(!returning.is_finished());
}
