use super::*;

fn leaves(count: u64) -> Vec<Digest> {
    (0..count).map(|index| leaf(index, &index.to_le_bytes())).collect()
}

/// The definition, written once more without the node store.
fn root_by_definition(leaves: &[Digest]) -> Digest {
    let mut level = leaves.to_vec();
    while level.len() > 1 {
        if level.len() % 2 == 1 {
            level.extend(level.last().copied());
        }
        level = level.chunks(2).map(|pair| node(&pair[0], &pair[1])).collect();
    }
    commitment(leaves.len() as u64, &level.first().copied().unwrap_or_default())
}

#[test]
fn proofs_bind_count_index_and_leaf() {
    for count in 0..70 {
        let leaves = leaves(count);
        let tree = Tree::new(leaves.clone());
        let root = tree.root();
        assert_eq!(root, root_by_definition(&leaves));
        assert_eq!(tree.prove(count), None);
        assert_eq!(tree.prove(u64::MAX), None);
        for index in 0..count {
            let proof = tree.prove(index).unwrap();
            let this = leaves[index as usize];
            assert_eq!(proof.verify(&root, count, index, this), Ok(()));
            for wrong in (0..140).chain([u64::MAX]) {
                assert_eq!(proof.verify(&root, wrong, index, this).is_ok(), wrong == count);
                assert_eq!(proof.verify(&root, count, wrong, this).is_ok(), wrong == index);
            }
            assert!(proof.verify(&this, count, index, this).is_err());
            assert!(proof.verify(&root, count, index, leaf(index, b"other")).is_err());
            assert!(proof.verify(&root, count, index, leaf(index + 1, &index.to_le_bytes())).is_err());
        }
    }
}

#[test]
fn altered_siblings_are_rejected() {
    for count in 1..70 {
        let leaves = leaves(count);
        let tree = Tree::new(leaves.clone());
        for index in 0..count {
            let good = tree.prove(index).unwrap().siblings.into_inner();
            let verify = |siblings: Vec<Digest>| {
                let proof = Proof { siblings: List::new(siblings).unwrap() };
                proof.verify(&tree.root(), count, index, leaves[index as usize]).is_ok()
            };
            assert!(verify(good.clone()));
            for place in 0..good.len() {
                let mut altered = good.clone();
                altered[place].0[7] ^= 1;
                assert!(!verify(altered));
                let mut shorter = good.clone();
                shorter.remove(place);
                assert!(!verify(shorter));
            }
            let mut longer = good.clone();
            longer.push(Digest::default());
            assert!(!verify(longer));
        }
    }
}

#[test]
fn a_repeated_last_leaf_is_another_tree() {
    let [a, b, c] = [1, 2, 3].map(|n| Digest([n; 32]));
    let [three, four] = [Tree::new([a, b, c]), Tree::new([a, b, c, c])];
    assert_eq!(three.top, four.top);
    assert_ne!(three.root(), four.root());
}

#[test]
fn a_node_is_no_leaf() {
    let leaves = leaves(4);
    let tree = Tree::new(leaves.clone());
    let pair = node(&leaves[0], &leaves[1]);
    let other = node(&leaves[2], &leaves[3]);
    let proof = Proof { siblings: List::new(vec![other]).unwrap() };
    for count in 0..8 {
        for index in 0..8 {
            assert!(proof.verify(&tree.root(), count, index, pair).is_err());
        }
    }
    let data: Vec<u8> = [leaves[0].0, leaves[1].0].concat();
    assert_ne!(leaf(0, &data), pair);
}

#[test]
fn index_and_data_do_not_run_together() {
    assert_ne!(leaf(0, &[0; 8]), leaf(0, &[0; 16]));
    assert_ne!(leaf(1, &[0; 8]), leaf(0, &[0; 8]));
    assert_ne!(leaf(0, &[]), Tree::new([]).root());
}

#[test]
fn known_answers() {
    let roots = [0, 1, 5].map(|count| format!("{:#}", Tree::new(leaves(count)).root()));
    let expected = [
        "a239087131889b4803c8381537d2ba55bda83ffc115ebe168e8916f339c96cce",
        "364efa6fecccc61477f513ec242b6bb46dbfa0509e9000cb5c3e8f899c5173fe",
        "7f4c0b22dfe2102c73ce1e7817a58595b225b8003bbbc15ab3c6ecc6da3d4b28",
    ];
    assert_eq!(roots, expected);
}

#[test]
fn merkle_7_an_outline_commits_to_the_same_as_the_tree_and_proves_the_same() {
    for count in (0..70).chain([255, 256, 257, 300]) {
        let leaves = leaves(count);
        let tree = Tree::new(leaves.clone());
        let pages = |leaves: &[Digest]| -> Vec<Digest> {
            let pages = (0..).zip(leaves.chunks(limits::PAGE_CHUNKS as usize));
            pages.map(|(number, leaves)| Outline::page(number, leaves)).collect()
        };
        let outline = Outline::new(count, pages(&leaves)).unwrap();
        assert_eq!(outline.root(), tree.root(), "{count}");
        assert_eq!(Outline::new(count + limits::PAGE_CHUNKS, pages(&leaves)), None);
        let upper = outline.tree();
        for index in 0..count {
            let first = index / limits::PAGE_CHUNKS * limits::PAGE_CHUNKS;
            let page = &leaves[first as usize..count.min(first + limits::PAGE_CHUNKS) as usize];
            assert_eq!(outline.prove(&upper, index, page), tree.prove(index), "{index} of {count}");
        }
        assert_eq!(outline.prove(&upper, count, &leaves), None);
        for place in 0..leaves.len() {
            let mut altered = leaves.clone();
            altered[place].0[3] ^= 1;
            assert_ne!(Outline::new(count, pages(&altered)).unwrap().root(), tree.root());
        }
    }
}
