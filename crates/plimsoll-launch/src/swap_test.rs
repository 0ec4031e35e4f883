//! Swap helps where pages can leave RAM, and nowhere else.

use proptest::prelude::*;

use super::*;

fn machine(ram: u64, pageable: u64, pinned: u64) -> SwapFacts {
    SwapFacts {
        ram: Bytes::gib(ram),
        pageable: Bytes::gib(pageable),
        pinned: Bytes::gib(pinned),
        disk_free: Some(Bytes::gib(200)),
        file_system: Some("ext4".into()),
        rotational: Some(false),
        ..SwapFacts::default()
    }
}

#[test]
fn a_full_card_is_not_helped_by_swap() {
    let verdict = swap(&SwapFacts { vram_short: true, ..machine(32, 16, 2) });
    assert_eq!(verdict.helps, Helps::No);
    assert!(verdict.commands.is_empty() && verdict.reasons[0].contains("card"), "{verdict}");
}

#[test]
fn pinned_memory_that_fills_ram_is_not_helped_by_swap() {
    let verdict = swap(&machine(32, 8, 40));
    assert_eq!((verdict.helps, verdict.commands.len()), (Helps::No, 0));
    assert!(verdict.reasons[0].contains("pinned"), "{verdict}");
}

#[test]
fn a_small_shortage_is_cold_and_a_large_one_is_slow() {
    let small = swap(&machine(32, 34, 0));
    assert_eq!((small.helps, small.add), (Helps::Yes, Some(Bytes::gib(3))));
    assert_eq!(
        small.commands,
        [
            "sudo fallocate -l 3G /swapfile",
            "sudo chmod 600 /swapfile",
            "sudo mkswap /swapfile",
            "sudo swapon /swapfile",
            "echo '/swapfile none swap sw 0 0' | sudo tee -a /etc/fstab",
        ]
    );
    assert!(small.zram.iter().any(|line| line.contains("zramctl --find --size 5G")), "{small}");
    assert_eq!(swap(&machine(32, 48, 0)).helps, Helps::Slowly);
    let moving = SwapFacts { rotational: Some(true), ..machine(32, 34, 0) };
    assert_eq!(swap(&moving).helps, Helps::Slowly);
}

#[test]
fn what_is_there_already_is_counted_and_limits_and_full_disks_are_seen() {
    let there = SwapFacts { swap_total: Bytes::gib(8), ..machine(32, 34, 0) };
    let verdict = swap(&there);
    assert_eq!((verdict.helps, verdict.add, verdict.commands.len()), (Helps::Yes, None, 0));
    let capped = SwapFacts { swap_allowed: Some(Bytes::ZERO), ..machine(32, 34, 0) };
    assert_eq!(swap(&capped).helps, Helps::No);
    let full = SwapFacts { disk_free: Some(Bytes::gib(1)), zram: true, ..machine(32, 34, 0) };
    assert_eq!(swap(&full).helps, Helps::No);
    let tmpfs = SwapFacts { file_system: Some("tmpfs".into()), zram: true, ..machine(32, 34, 0) };
    assert!(swap(&tmpfs).commands.is_empty());
    let btrfs = SwapFacts { file_system: Some("btrfs".into()), ..machine(32, 34, 0) };
    assert_eq!(swap(&btrfs).commands[0], "sudo btrfs filesystem mkswapfile --size 3g /swapfile");
}

proptest! {
    #[test]
    fn commands_are_printed_only_where_swap_helps(
        ram in 0u64..64, pageable in 0u64..128, pinned in 0u64..64, total in 0u64..32, used in 0u64..32, vram in any::<bool>(),
        disk in proptest::option::of(0u64..64), container in any::<bool>(), zram in any::<bool>(),
    ) {
        let facts = SwapFacts {
            swap_total: Bytes::gib(total), swap_used: Bytes::gib(used), vram_short: vram, in_container: container, zram,
            disk_free: disk.map(Bytes::gib), ..machine(ram, pageable, pinned)
        };
        let verdict = swap(&facts);
        prop_assert!(!verdict.reasons.is_empty());
        if matches!(verdict.helps, Helps::No | Helps::NotNeeded) {
            prop_assert!(verdict.commands.is_empty() && verdict.zram.is_empty() && verdict.add.is_none());
        } else {
            prop_assert!(verdict.short <= facts.pageable, "what is pinned cannot be swapped");
        }
    }
}
