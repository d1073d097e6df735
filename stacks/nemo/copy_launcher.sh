#!/usr/bin/env bash
# The part of launcher.sh that runs inside the environment: copy the launcher out of the image and fill in its
# configuration. Prints the launcher's directory, then the overrides for its main.py, one per line.
set -euo pipefail

source "${LONGSHIP_ROOT:?}/lib/jobs/inside/ranks.bash" # fail
source "$LONGSHIP_ROOT/lib/jobs/inside/template.bash"

readonly in_image=/opt/NeMo-Framework-Launcher templates=$LONGSHIP_ROOT/stacks/nemo/templates
readonly folder=${LONGSHIP_SCRATCH_DIR:?}/nemo_launcher

[[ -f $in_image/launcher_scripts/main.py ]] ||
    fail "launcher not found in the image: $in_image" \
        'build the image of stacks/nemo/Dockerfile: python3 build_container.py'
image=${NEMO_IMAGE:-$LONGSHIP_SCRATCH_DIR/containers/nemo_amd64.sqsh}
[[ -f $image ]] || fail "image not found: $image" \
    'set the path of the active image: export NEMO_IMAGE=/path/to/file.sqsh'

# Again only for another commit; what a user has edited in the old one stays beside it.
if ! cmp -s -- "$in_image/.git/HEAD" "$folder/.git/HEAD"; then
    rm -rf -- "$folder.partial"
    cp -a -- "$in_image" "$folder.partial"
    if [[ -e $folder ]]; then mv -- "$folder" "$folder.$(date +%Y%m%d-%H%M%S)"; fi
    mv -- "$folder.partial" "$folder"
fi
fill_template "$templates/config.yaml" "$folder/launcher_scripts/conf/config.yaml"
fill_template "$templates/cluster/bcm.yaml" "$folder/launcher_scripts/conf/cluster/bcm.yaml"

# quoted TEXT: as Hydra's grammar wants a value that can hold anything.
quoted() { printf "'%s'" "${1//\'/\\\'}"; }

results=${LONGSHIP_CHECKPOINT_DIR:?}/${TRAINING_RESULTS:?}
# a swap before the job starts does not reach it
overrides=(container="$(quoted "$(readlink -f -- "$image")")")
if ((TRAINING_UNIQUE_RESULTS)); then
    results+=-$(date +%Y%m%d-%H%M%S)-$$
    # none waits for another
    overrides+=(base_results_dir="$(quoted "$results")" training.run.dependency=null)
fi
mkdir -p -- "$results" "$LONGSHIP_SCRATCH_DIR/data" # Pyxis mounts both
printf '%s\n' "$folder" "${overrides[@]}"
