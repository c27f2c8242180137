use super::*;

fn books(everyone: &[(Kind, u64)], machine: &[(Kind, u64)]) -> Books {
    let limits = |all: &[(Kind, u64)]| all.iter().copied().collect::<Limits>();
    Books::new(&Quota { everyone: limits(everyone), machine: limits(machine), ..Quota::default() })
}

#[test]
fn it_is_all_or_nothing() {
    let mut books = books(&[(Kind::Sessions, 8), (Kind::Memory, 100)], &[]);
    let wanted = || Amounts::of([(Kind::Sessions, 1), (Kind::Memory, 60)]);
    let first = books.take(Principal::ANN, "a", wanted()).unwrap();
    let refusal = books.take(Principal::ANN, "b", wanted()).unwrap_err();
    assert_eq!((refusal.kind, refusal.used, refusal.limit), (Kind::Memory, 60, 100));
    assert_eq!(refusal.by, [Share { by: "a".into(), amount: 60 }]);
    assert_eq!(books.used(Principal::ANN, Kind::Sessions), 1);
    books.release(Principal::ANN, first);
    assert_eq!(books.used(Principal::ANN, Kind::Sessions), 0);
    assert!(books.take(Principal::ANN, "b", wanted()).is_ok());
}

#[test]
fn nobody_spends_the_quota_of_another_and_the_machine_has_one_too() {
    let mut books = books(&[(Kind::Jobs, 2)], &[(Kind::Jobs, 3)]);
    let job = || Amounts::of([(Kind::Jobs, 1)]);
    books.take(Principal::ANN, "a", job()).unwrap();
    books.take(Principal::ANN, "a", job()).unwrap();
    assert_eq!(books.take(Principal::ANN, "a", job()).unwrap_err().whose, LimitOwner::User);
    books.take(Principal::BOB, "b", job()).unwrap();
    let refusal = books.take(Principal::BOB, "b", job()).unwrap_err();
    // The refusal does not name the sessions of another user.
    assert_eq!((refusal.whose, refusal.used, refusal.by), (LimitOwner::Machine, 3, vec![]));
}

#[test]
fn some_users_have_limits_of_their_own() {
    let mut books = books(&[(Kind::Sessions, 1)], &[]);
    books.set_limits(Principal::BOB, [(Kind::Sessions, 2)].into_iter().collect());
    let session = || Amounts::of([(Kind::Sessions, 1)]);
    for owner in [Principal::ANN, Principal::BOB] {
        books.take(owner, "a", session()).unwrap();
    }
    assert!(books.take(Principal::ANN, "b", session()).is_err());
    assert!(books.take(Principal::BOB, "b", session()).is_ok());
}

#[test]
fn what_is_measured_is_noted_even_if_it_is_too_much() {
    let mut books = books(&[(Kind::Workspace, 100)], &[]);
    let a = books.keep(Principal::ANN, "a", Amounts::default());
    let b = books.keep(Principal::ANN, "b", Amounts::default());
    books.measure(Principal::ANN, a, Kind::Workspace, 70).unwrap();
    let refusal = books.measure(Principal::ANN, b, Kind::Workspace, 50).unwrap_err();
    assert_eq!((refusal.used, refusal.limit), (120, 100));
    assert!(books.tolerates(Principal::ANN, Kind::Workspace, 1).is_err());
    books.tolerates(Principal::ANN, Kind::Workspace, 2).unwrap();
    books.measure(Principal::ANN, a, Kind::Workspace, 10).unwrap();
    assert_eq!(
        (
            books.amount_of(Principal::ANN, a, Kind::Workspace),
            books.amount_of(Principal::BOB, a, Kind::Workspace)
        ),
        (10, 0)
    );
}

#[test]
fn what_grows_is_refused_before_it_is_there_and_what_is_spare_stands_in_nobodys_way() {
    let mut books = books(&[(Kind::Journal, 100)], &[]);
    let a = books.keep(Principal::ANN, "a", Amounts::default());
    books.grow(Principal::ANN, a, Kind::Journal, 70).unwrap();
    let refusal = books.grow(Principal::ANN, a, Kind::Journal, 40).unwrap_err();
    assert_eq!(
        (refusal.used, refusal.wanted, books.amount_of(Principal::ANN, a, Kind::Journal)),
        (70, 40, 70)
    );
    // `add` ignores the limit, and the next `grow` is refused.
    books.add(Principal::ANN, a, Kind::Journal, 35);
    assert!(books.grow(Principal::ANN, a, Kind::Journal, 0).is_err());
    books.shrink(Principal::ANN, a, Kind::Journal, 15);
    books.grow(Principal::ANN, a, Kind::Journal, 10).unwrap();
    // The holder leaves; its bytes still count as used, but other holds have all the room.
    let looked = books.next_id();
    books.leave(Principal::ANN, a, "removed", Kind::Journal);
    let b = books.keep(Principal::ANN, "b", Amounts::default());
    books.grow(Principal::ANN, b, Kind::Journal, 90).unwrap();
    assert_eq!(
        (books.used(Principal::ANN, Kind::Journal), books.available_for_spare(Principal::ANN, Kind::Journal)),
        (190, 10)
    );
    assert!(books.tolerates(Principal::ANN, Kind::Journal, 1).is_err());
    books.tolerates(Principal::ANN, Kind::Journal, 2).unwrap();
    books.drop_left(looked);
    assert_eq!(books.used(Principal::ANN, Kind::Journal), 190, "it was left after that");
    books.drop_left(books.next_id());
    assert_eq!(books.used(Principal::ANN, Kind::Journal), 90);
}

#[test]
fn tokens_come_back_with_a_new_day() {
    let mut books = books(&[(Kind::Tokens, 1000)], &[]);
    books.may_spend(Principal::ANN, 20).unwrap();
    books.spend(Principal::ANN, 20, "a", 900);
    books.may_spend(Principal::ANN, 20).unwrap();
    books.spend(Principal::ANN, 20, "b", 200);
    let refusal = books.may_spend(Principal::ANN, 20).unwrap_err();
    assert_eq!((refusal.used, refusal.by.len()), (1100, 2));
    books.may_spend(Principal::BOB, 20).unwrap();
    books.may_spend(Principal::ANN, 21).unwrap();
    assert_eq!(books.used(Principal::ANN, Kind::Tokens), 0);
}

#[test]
fn what_the_account_before_has_spent_counts_for_the_machine_alone() {
    let mut books = books(&[(Kind::Tokens, 1000)], &[(Kind::Tokens, 1500)]);
    books.spend(Principal::ANN, 20, "a", 1000);
    assert!(books.may_spend(Principal::ANN, 20).is_err());
    books.forget_spent(Principal::ANN);
    books.forget_spent(Principal::BOB);
    books.may_spend(Principal::ANN, 20).unwrap();
    assert_eq!((books.used(Principal::ANN, Kind::Tokens), books.used_by_all(Kind::Tokens)), (0, 1000));
    assert!(!books.users().contains(&Principal::FORMER_ACCOUNTS));
    books.spend(Principal::ANN, 20, "b", 500);
    assert_eq!(books.may_spend(Principal::ANN, 20).unwrap_err().whose, LimitOwner::Machine);
    books.may_spend(Principal::ANN, 21).unwrap();
}

#[test]
fn a_spare_hold_is_needed_again_only_if_there_is_room_for_it() {
    let mut books = books(&[(Kind::Workspace, 100)], &[(Kind::Workspace, 150)]);
    let disk = |bytes| Amounts::of([(Kind::Workspace, bytes)]);
    let packages = books.keep(Principal::ANN, "packages", disk(60));
    books.set_spare(Principal::ANN, packages, true);
    let work = books.take(Principal::ANN, "work", disk(70)).unwrap();
    assert_eq!(
        (books.excess(Principal::ANN, Kind::Workspace), books.excess_of_all(Kind::Workspace)),
        (30, 0)
    );
    books.keep(Principal::BOB, "work", disk(40));
    assert_eq!(books.excess_of_all(Kind::Workspace), 20);
    let room =
        |owner| (books.available(owner, Kind::Workspace), books.available_for_spare(owner, Kind::Workspace));
    assert_eq!(room(Principal::ANN), (30, 30));
    assert_eq!(room(Principal::BOB), (40, 0), "what is spare of others goes when it is needed");
    // A cell may run: what is above the limit is given up by itself.
    assert!(books.tolerates(Principal::ANN, Kind::Workspace, 1).is_err());
    books.tolerates_needed(Principal::ANN, Kind::Workspace, 1).unwrap();
    let refusal = books.need_again(Principal::ANN, packages).unwrap_err();
    assert_eq!((refusal.used, refusal.wanted, refusal.limit), (70, 60, 100));
    assert!(books.take(Principal::ANN, "more", disk(30)).is_ok(), "it is still spare");
    books.release(Principal::ANN, work);
    books.need_again(Principal::ANN, packages).unwrap();
    books.need_again(Principal::ANN, packages).unwrap();
    assert!(books.take(Principal::ANN, "more", disk(30)).is_err());
}
