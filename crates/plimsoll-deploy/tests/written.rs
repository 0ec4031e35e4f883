//! What the files hold, whatever goes in: the words come back, no secret stands there, and nothing loops on a refusal.

mod deployed;

use deployed::{native, odd};
use plimsoll_deploy::{DeployError, Deployment, Name, Target, quote, render};
use proptest::prelude::*;
use serde_json::Value;

fn words(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|word| word.as_str().unwrap().replace("$$", "$")).collect()
}

proptest! {
    #[test]
    fn any_words_come_back_from_yaml(said in proptest::collection::vec("[^\0]{0,12}", 1..6)) {
        let deployment = Deployment { words: said.clone(), ..odd() };
        let compose: Value = serde_saphyr::from_str(&render(Target::Compose, &deployment).unwrap()).unwrap();
        prop_assert_eq!(words(&compose["services"]["chat"]["command"]), said.clone());
        let job: Value = serde_saphyr::from_str(&render(Target::K8s, &deployment).unwrap()).unwrap();
        prop_assert_eq!(words(&job["spec"]["template"]["spec"]["containers"][0]["args"]), said);
    }

    #[test]
    fn a_comment_is_one_line_whatever_it_says(text in "\\PC*|[\\s\\S]{0,40}") {
        let line = quote::comment(&text);
        prop_assert!(!line.contains(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']), "{line:?}");
    }
}

const TARGETS: [Target; 4] = [Target::Compose, Target::Systemd, Target::Slurm, Target::K8s];

#[test]
fn every_file_names_limit_stop_cards_and_variables() {
    for target in TARGETS {
        let text = render(target, &odd()).unwrap();
        assert!(text.contains("3344"), "{target:?} has no limit:\n{text}");
        assert!(text.contains("130"), "{target:?} has no grace period:\n{text}");
        assert!(text.contains("AWS_SECRET_ACCESS_KEY"), "{target:?}\n{text}");
        assert!(text.contains("a note with two lines"), "{target:?}\n{text}");
        assert!(text.contains("steps since its last checkpoint are lost"), "{target:?}\n{text}");
        assert!(render(target, &native()).unwrap().contains("a checkpoint is saved first"), "{target:?}");
    }
}

#[test]
fn every_file_that_can_asks_for_its_cards_and_for_none_without() {
    let asked = [
        (Target::Compose, "              count: 4\n              capabilities: [\"gpu\"]\n"),
        (Target::Slurm, "\n#SBATCH --gres=gpu:4\n"),
        (Target::K8s, "              nvidia.com/gpu: 4\n"),
    ];
    for (target, line) in asked {
        let text = render(target, &odd()).unwrap();
        assert!(text.contains(line), "{target:?} has no cards:\n{text}");
        let none = render(target, &native()).unwrap();
        assert!(!none.contains("gpu"), "{target:?} has cards:\n{none}");
    }
    // A service has those of its machine.
    assert!(!render(Target::Systemd, &odd()).unwrap().contains("gpu"));
}

#[test]
fn a_pod_of_ours_is_held_to_its_cores_and_asks_for_fewer() {
    let resources = |deployment: &Deployment| {
        let job: Value = serde_saphyr::from_str(&render(Target::K8s, deployment).unwrap()).unwrap();
        job["spec"]["template"]["spec"]["containers"][0]["resources"].clone()
    };
    let ours = resources(&native());
    assert_eq!((&ours["limits"]["cpu"], &ours["requests"]["cpu"]), (&4.into(), &"3500m".into()), "{ours}");
    let theirs = resources(&odd());
    assert_eq!((&theirs["limits"]["cpu"], &theirs["requests"]["cpu"]), (&Value::Null, &"3500m".into()), "{theirs}");
}

#[test]
fn a_name_stays_a_name_even_where_yaml_has_another_word_for_it() {
    for name in ["yes", "null", "1e3", "007", "true"] {
        let deployment = Deployment { name: Name::near(name).unwrap(), ..native() };
        let compose: Value = serde_saphyr::from_str(&render(Target::Compose, &deployment).unwrap()).unwrap();
        assert!(compose["services"][name]["image"].is_string(), "{compose}");
        let job: Value = serde_saphyr::from_str(&render(Target::K8s, &deployment).unwrap()).unwrap();
        assert_eq!(job["metadata"]["name"], name);
        assert_eq!(job["spec"]["template"]["spec"]["containers"][0]["name"], name);
        assert_eq!(job["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"], name);
    }
}

#[test]
fn a_claim_stands_for_the_folders_below_it() {
    let job: Value = serde_saphyr::from_str(&render(Target::K8s, &odd()).unwrap()).unwrap();
    let volumes = job["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
    let kinds: Vec<&str> =
        volumes.iter().flat_map(|volume| volume.as_object().unwrap().keys()).map(String::as_str).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "persistentVolumeClaim").count(), 1);
    assert_eq!(kinds.iter().filter(|kind| **kind == "hostPath").count(), 1);
    assert_eq!(kinds.iter().filter(|kind| **kind == "emptyDir").count(), 1);
}

#[test]
fn a_refusal_ends_it_wherever_exit_codes_can_be_told_apart() {
    let job: Value = serde_saphyr::from_str(&render(Target::K8s, &native()).unwrap()).unwrap();
    let rules = job["spec"]["podFailurePolicy"]["rules"].as_array().unwrap();
    let fails = rules.iter().find(|rule| rule["action"] == "FailJob").unwrap();
    assert_eq!(fails["onExitCodes"]["values"], serde_json::json!([2, 3]));
    assert_eq!(job["spec"]["template"]["spec"]["restartPolicy"], "Never");
    let unit = render(Target::Systemd, &native()).unwrap();
    assert!(unit.contains("\nRestartPreventExitStatus=1 2 3\n"), "{unit}");
    assert!(unit.contains("\nStartLimitBurst=3\n"), "{unit}");
}

#[test]
fn what_cannot_be_written_is_refused() {
    let zero = Deployment { words: vec!["a\0b".into()], ..native() };
    assert_eq!(render(Target::Compose, &zero), Err(DeployError::ZeroByte { what: "a\\0b".into() }));
    let relative = Deployment { folder: "runs".into(), ..native() };
    assert_eq!(render(Target::Slurm, &relative), Err(DeployError::NotAbsolute { path: "runs".into() }));
    for folder in ["/a\nb", "/a ", "/a\\"] {
        let refused = render(Target::Systemd, &Deployment { folder: folder.into(), ..native() });
        assert!(matches!(refused, Err(DeployError::Path { target: "systemd", .. })), "{folder:?}: {refused:?}");
    }
}
