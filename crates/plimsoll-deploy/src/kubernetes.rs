//! A Kubernetes job: one pod after another until the run is done.
//!
//! The pod failure policy tells exit codes apart: what is wrong or cannot fit fails the job at once, what the cluster itself
//! ended (a drain, a preemption) does not count, and everything else counts towards a small limit.

use crate::quote::{comment, kubernetes as quoted, yaml};
use crate::{Deployment, FINAL, Kind, RESTARTS};

/// The manifest.
pub fn kubernetes(deployment: &Deployment) -> String {
    let d = deployment;
    let (name, quoted_name) = (&d.name, yaml(d.name.as_str()));
    let mut how = vec![
        format!("Start: kubectl apply -f THIS-FILE; look: kubectl logs -f job/{name}"),
        d.stopped_by(&format!("kubectl patch job {name} -p '{{\"spec\":{{\"suspend\":true}}}}'; go on: false")),
    ];
    if !d.variables.is_empty() {
        let secret = comment(&d.secret);
        how.push(format!(
            "Variables, once: kubectl create secret generic {secret} --from-env-file=FILE, with lines NAME=value"
        ));
    }
    let how: Vec<&str> = how.iter().map(String::as_str).collect();
    let mut out = d.head(&how);
    out += &format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: {quoted_name}\n  labels:\n    app.kubernetes.io/name: {quoted_name}\n    \
         app.kubernetes.io/managed-by: plimsoll\nspec:\n  backoffLimit: {RESTARTS}\n  completions: 1\n  parallelism: 1\n"
    );
    let last = FINAL.map(|code| code.code().to_string()).join(", ");
    out += &format!(
        "  podFailurePolicy:\n    rules:\n      # What the cluster ended does not count.\n      - action: Ignore\n        \
         onPodConditions:\n          - type: DisruptionTarget\n            status: \"True\"\n      \
         # Wrong, or it cannot fit: another pod would end the same.\n      - action: FailJob\n        onExitCodes:\n          \
         containerName: {quoted_name}\n          operator: In\n          values: [{last}]\n"
    );
    out += &format!(
        "  template:\n    metadata:\n      labels:\n        app.kubernetes.io/name: {quoted_name}\n    spec:\n      \
         restartPolicy: Never\n      # Something else is process 1: signals and dead children are seen to.\n      \
         shareProcessNamespace: true\n      # {}\n      terminationGracePeriodSeconds: {}\n",
        comment(&d.grace.says),
        d.grace.seconds
    );
    let (user, group) = d.owner;
    out += &format!(
        "      securityContext:\n        runAsUser: {user}\n        runAsGroup: {group}\n        fsGroup: {group}\n"
    );
    out += &format!("      containers:\n        - name: {quoted_name}\n          image: {}\n", yaml(&d.image));
    out += "          command: [\"plimsoll\"]\n          args:\n";
    d.words.iter().for_each(|word| out += &format!("            - {}\n", quoted(word)));
    out += &format!("          workingDir: {}\n", yaml(&d.folder));
    out += "          securityContext:\n            allowPrivilegeEscalation: false\n";
    if d.kind == Kind::Native {
        out += "            capabilities:\n              drop: [\"ALL\"]\n";
    }
    variables(&mut out, d);
    let mib = d.memory.mib();
    let cards = match d.cards {
        0 => String::new(),
        cards => format!("              nvidia.com/gpu: {cards}\n"),
    };
    // It takes as many threads as it finds cores, and is planned for these. Trainers of others count the node's, and would wait in turn.
    let bound = match d.kind {
        Kind::Native => format!("              cpu: {}\n", d.cores.max(1)),
        Kind::Foreign => String::new(),
    };
    out += &format!(
        "          resources:\n            # {}.\n            limits:\n              memory: {mib}Mi\n{bound}{cards}            \
         requests:\n              memory: {mib}Mi\n              # Of {} cores: a node keeps a part of its own for itself.\n              \
         cpu: {}\n{cards}",
        comment(&d.memory.says()),
        d.cores.max(1),
        requested(d.cores)
    );
    volumes(&mut out, d);
    out
}

/// What a pod asks for, that wants so many cores: less by a tenth and by half a core at least. A node gives pods less than it has, and its
/// own daemons have asked already: whoever asks for all waits for ever.
fn requested(cores: u64) -> String {
    let all = cores.clamp(1, u64::MAX / 1000) * 1000;
    let thousandths = all - (all / 10).max(500);
    match thousandths % 1000 {
        0 => (thousandths / 1000).to_string(),
        _ => format!("{thousandths}m"),
    }
}

fn variables(out: &mut String, d: &Deployment) {
    if d.variables.is_empty() && d.set.is_empty() && d.cards == 0 {
        return;
    }
    *out += "          env:\n";
    for (name, value) in &d.set {
        *out += &format!("            - name: {}\n              value: {}\n", yaml(name), quoted(value));
    }
    if d.cards > 0 {
        *out += "            - name: NVIDIA_DRIVER_CAPABILITIES\n              value: \"compute,utility\"\n";
    }
    for name in &d.variables {
        *out += &format!(
            "            - name: {}\n              valueFrom:\n                secretKeyRef:\n                  name: {}\n                  \
             key: {}\n                  optional: true\n",
            yaml(name),
            yaml(&d.secret),
            yaml(name)
        );
    }
}

/// Where each thing is mounted, and what it is.
fn volumes(out: &mut String, d: &Deployment) {
    let mut mounts = String::new();
    let mut volumes = String::new();
    for (n, claim) in d.claims.iter().enumerate() {
        mounts += &format!("            - name: claim-{n}\n              mountPath: {}\n", yaml(&claim.path));
        volumes += &format!(
            "        - name: claim-{n}\n          persistentVolumeClaim:\n            claimName: {}\n",
            yaml(&claim.name)
        );
    }
    for (n, mount) in d.unclaimed().enumerate() {
        let path = yaml(&mount.path);
        mounts += &format!("            - name: folder-{n}\n              mountPath: {path}\n");
        if !mount.written {
            mounts += "              readOnly: true\n";
        }
        volumes += &format!(
            "        # A folder of the node; `--claim NAME=/PATH` takes a volume claim instead.\n        - name: folder-{n}\n          \
             hostPath:\n            path: {path}\n            type: Directory\n"
        );
    }
    if let Some(shm) = d.shm {
        let mib = shm.0.div_ceil(1 << 20);
        mounts += "            - name: shm\n              mountPath: /dev/shm\n";
        volumes +=
            "        # Batches of loader processes and messages between ranks lie there; counted in the limit.\n";
        volumes += &format!(
            "        - name: shm\n          emptyDir:\n            medium: Memory\n            sizeLimit: {mib}Mi\n"
        );
    }
    if !mounts.is_empty() {
        *out += &format!("          volumeMounts:\n{mounts}      volumes:\n{volumes}");
    }
}

#[cfg(test)]
mod tests {
    use super::requested;

    #[test]
    fn a_pod_asks_for_less_than_a_node_of_so_many_cores_has() {
        let asked: Vec<String> = [1, 2, 4, 8, 20, 64].map(requested).to_vec();
        assert_eq!(asked, ["500m", "1500m", "3500m", "7200m", "18", "57600m"]);
        assert_eq!(requested(0), "500m");
    }
}
