#!/usr/bin/env bash
# The part of launcher.sh that runs inside the environment: copy the launcher from the image and
# fill in its configuration. Prints the launcher's directory, then the overrides for its main.py,
# one per line.
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash" # fail
source "$LONGSHIP_ROOT/lib/jobs/inside/template.bash"

readonly in_image=/opt/NeMo-Framework-Launcher templates=$LONGSHIP_ROOT/stacks/nemo/templates
readonly directory=${LONGSHIP_SCRATCH_DIR:?}/nemo_launcher

[[ -f $in_image/launcher_scripts/main.py ]] ||
    fail "launcher not found in the image: $in_image" \
        'build the image of stacks/nemo/Dockerfile: python3 build_container.py'
image=${NEMO_IMAGE:-$LONGSHIP_SCRATCH_DIR/containers/nemo_amd64.sqsh}
[[ -f $image ]] || fail "image not found: $image" \
    'set the path of the active image: export NEMO_IMAGE=/path/to/file.sqsh'

# Copied again only for another commit; the old copy is kept with its local changes.
if ! cmp -s -- "$in_image/.git/HEAD" "$directory/.git/HEAD"; then
    rm -rf -- "$directory.partial"
    cp -a -- "$in_image" "$directory.partial"
    if [[ -e $directory ]]; then mv -- "$directory" "$directory.$(date +%Y%m%d-%H%M%S)"; fi
    mv -- "$directory.partial" "$directory"
fi
fill_template "$templates/config.yaml" "$directory/launcher_scripts/conf/config.yaml"
fill_template "$templates/cluster/bcm.yaml" "$directory/launcher_scripts/conf/cluster/bcm.yaml"

# quoted TEXT: quote any value for Hydra's grammar.
quoted() { printf "'%s'" "${1//\'/\\\'}"; }

results=${LONGSHIP_CHECKPOINT_DIR:?}/${TRAINING_RESULTS:?}
# The resolved path, so that activating another image does not affect the job.
overrides=(container="$(quoted "$(readlink -f -- "$image")")")
if ((TRAINING_UNIQUE_RESULTS)); then
    results+=-$(date +%Y%m%d-%H%M%S)-$$
    # Runs are independent of each other.
    overrides+=(base_results_dir="$(quoted "$results")" training.run.dependency=null)
fi
mkdir -p -- "$results" "$LONGSHIP_SCRATCH_DIR/data" # Pyxis mounts both
printf '%s\n' "$directory" "${overrides[@]}"
