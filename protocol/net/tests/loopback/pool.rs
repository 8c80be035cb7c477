//! Pools: clients that are kept, dialled again, and given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use muster_core::ids::MemberId;
use muster_net::error::Cause;
use muster_net::listener::Listener;
use muster_net::pool::Pool;
use muster_net::seats::ConnectionLimit;
use muster_net::serve::Unanswered;

use super::{LONG, SHORT, Server, cause, echo, endpoint};

/// Echoes on every connection up to so many requests, and counts the connections.
async fn counting_server(name: u8, requests: usize) -> (String, Arc<AtomicUsize>) {
    let listener = Listener::bind("127.0.0.1:0", ConnectionLimit::default()).await.unwrap();
    let address = listener.local_addr().to_string();
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = accepted.clone();
    tokio::spawn(async move {
        loop {
            let mut connection = listener.accept().await.establish(&endpoint(name)).await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                for _ in 0..requests {
                    let Ok(request) = connection.receive().await else { return };
                    let _ = connection.send(&request).await;
                }
            });
        }
    });
    (address, accepted)
}

#[tokio::test]
async fn a_pool_keeps_its_clients_up_to_the_bound() {
    let (one, accepted_one) = counting_server(11, 100).await;
    let (two, accepted_two) = counting_server(12, 100).await;
    let (id_one, id_two) = (endpoint(11).id(), endpoint(12).id());
    let pool = Pool::new(endpoint(1), 2);
    for _ in 0..5 {
        assert_eq!(pool.call(&one, id_one, b"a", LONG).await.unwrap(), b"a");
        assert_eq!(pool.call(&two, id_two, b"b", LONG).await.unwrap(), b"b");
    }
    let counts = || (accepted_one.load(Ordering::SeqCst), accepted_two.load(Ordering::SeqCst));
    assert_eq!(counts(), (1, 1));
    let narrow = Pool::new(endpoint(1), 1);
    for _ in 0..3 {
        narrow.call(&one, id_one, b"a", LONG).await.unwrap();
        narrow.call(&two, id_two, b"b", LONG).await.unwrap();
    }
    assert_eq!(counts(), (4, 4));
}

#[tokio::test]
async fn a_pool_dials_again_when_a_client_broke() {
    let (address, accepted) = counting_server(11, 2).await;
    let pool = Pool::new(endpoint(1), 4);
    for number in 0..6 {
        assert_eq!(pool.call(&address, endpoint(11).id(), &[number], LONG).await.unwrap(), [number]);
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 3);
    let (address, accepted) = counting_server(12, 0).await;
    assert!(matches!(cause(pool.call(&address, endpoint(12).id(), b"x", LONG).await), Cause::Closed));
    assert_eq!(accepted.load(Ordering::SeqCst), 1, "a fresh client is not replaced");
}

#[tokio::test]
async fn a_pool_goes_on_with_a_series_on_a_new_channel() {
    let (address, accepted) = counting_server(11, 4).await;
    let pool = Pool::new(endpoint(1), 4);
    let id = endpoint(11).id();
    pool.call(&address, id, b"a", LONG).await.unwrap();
    let mut answers = Vec::new();
    let mut take = |answer: Vec<u8>| {
        answers.extend(answer);
        true
    };
    let request = |number: usize| (number < 4).then_some([number as u8]);
    pool.call_each(&address, id, &request, LONG, &mut take).await.unwrap();
    assert_eq!((answers, accepted.load(Ordering::SeqCst)), (vec![0, 1, 2, 3], 2));
}

#[tokio::test]
async fn a_pool_says_when_the_peer_is_gone_or_another() {
    let server = Server::start(echo).await;
    let (address, id) = (server.address.clone(), server.id);
    let pool = Pool::new(endpoint(1), 4);
    assert_eq!(pool.call(&address, id, b"one", LONG).await.unwrap(), b"one");
    assert!(matches!(cause(pool.call(&address, endpoint(3).id(), b"x", LONG).await), Cause::Handshake(_)));
    server.stop().await;
    assert!(matches!(cause(pool.call(&address, id, b"gone", LONG).await), Cause::Refused));
}

#[tokio::test]
async fn a_pool_asks_one_peer_in_turn_and_different_peers_at_once() {
    let both = Arc::new(tokio::sync::Barrier::new(2));
    let meet = |both: Arc<tokio::sync::Barrier>| {
        let active = Arc::new(AtomicUsize::new(0));
        move |_: MemberId, request: Vec<u8>| {
            let (both, active) = (both.clone(), active.clone());
            async move {
                assert_eq!(active.fetch_add(1, Ordering::SeqCst), 0, "two requests at one peer");
                both.wait().await;
                active.fetch_sub(1, Ordering::SeqCst);
                Ok(request)
            }
        }
    };
    let one = Server::start(meet(both.clone())).await;
    let two = Server::start(meet(both)).await;
    let pool = Arc::new(Pool::new(endpoint(1), 4));
    let calls: Vec<_> = [&one, &two, &one, &two]
        .map(|server| {
            let (pool, address, id) = (pool.clone(), server.address.clone(), server.id);
            tokio::spawn(async move { pool.call(&address, id, b"meet", LONG).await })
        })
        .into_iter()
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), b"meet");
    }
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn a_call_waits_no_longer_than_it_says() {
    let server = Server::start(|_, _: Vec<u8>| std::future::pending::<Result<Vec<u8>, Unanswered>>()).await;
    let pool = Pool::new(endpoint(1), 1);
    let call = || pool.call(&server.address, server.id, b"hang", SHORT);
    let (one, two) = tokio::join!(call(), call());
    assert!(matches!(cause(one), Cause::Timeout(_)) && matches!(cause(two), Cause::Timeout(_)));
    server.stop().await;
}

/// CHAN-13: where the process has no descriptor left, what nobody uses is closed, the oldest first, and dialled again later.
#[tokio::test]
async fn chan_13_a_pool_gives_up_what_is_idle() {
    let (one, accepted_one) = counting_server(11, 100).await;
    let (two, accepted_two) = counting_server(12, 100).await;
    let pool = Pool::new(endpoint(1), 4);
    assert!(!pool.relieve(), "nothing is open");
    pool.call(&one, endpoint(11).id(), b"a", LONG).await.unwrap();
    pool.call(&two, endpoint(12).id(), b"b", LONG).await.unwrap();
    assert!(pool.relieve());
    for _ in 0..2 {
        pool.call(&two, endpoint(12).id(), b"b", LONG).await.unwrap();
        pool.call(&one, endpoint(11).id(), b"a", LONG).await.unwrap();
    }
    assert_eq!((accepted_one.load(Ordering::SeqCst), accepted_two.load(Ordering::SeqCst)), (2, 1));
    assert!(pool.relieve() && pool.relieve() && !pool.relieve());
}
