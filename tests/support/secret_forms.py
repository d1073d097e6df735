"""One list of the forms of secrets, and of texts that only look like one."""

# Not in one piece: nobody could pack this repository.
V, HEX = "q7Zk8" + "bW2" * 8, "0a1b2c3d" * 5
URLS = [
    f"https://{V}@example.org/simple",
    f"https://me:{V}@example.org/x",
    f"git+https://me:{V}@example.org/x.git@v1",
    f"simple+https://me:p@{V}@example.org/x",
    f"postgres://me:{V}@example.org/db",
    f"http://:{V}@example.org:3128",
]
FORMS = [
    *URLS,
    f"Authorization: Bearer {V}",
    f"-H 'authorization: bearer {V}'",
    f'"Authorization": "Basic {V}"',
    f"X-Api-Key: {V}",
    f"password: {V}",
    f"DB_PASSWORD={V}",
    f"PGPASSWORD='{V}'",
    f'passphrase = "{V}"',
    f'{{"token": "{V}"}}',
    f'{{\\"token\\": \\"{V}\\"}}',
    f"{{'auth_token': '{V}'}}",
    f"accessToken: '{V}'",
    f"client_secret={V}",
    f"https://example.org/x?token={V}&page=2",
    f"--hub-token {V} --steps 3",
    f"'--api-key' '{V}'",
    f"--api-key={V}",
    f"export WANDB_API_KEY={HEX}",
    f"wandb login {HEX}",
    f"wandb login --relogin {HEX}",
    f'os.environ.setdefault("WANDB_API_KEY", "{HEX}")',
    f"machine api.wandb.ai login user password {HEX}",
    f"machine example.org login me password {V}",
    f"aws_secret_access_key = {V}",
    f"AccountKey={V};EndpointSuffix=core.windows.net",
    "AKIA" + "Q7Z2" * 4,
    "hf_" + "aB3" * 12,
    "ghp_" + "aB3" * 12,
    "github_pat_" + "aB3" * 12,
    "glpat-" + "aB3" * 8,
    "nvapi-" + "aB3" * 12,
    "sk-" + "proj-" + "aB3" * 12,
    "xoxb-" + "12345-" * 4,
    f"eyJ{V}.eyJ{V}.{V}",
    f"-----BEGIN RSA PRIVATE {'KEY'}-----\n{V}\n-----END RSA PRIVATE {'KEY'}-----",
]
SHORT = [
    "password: xy1",
    "'password': 'my horse'",
    "docker login -u me -p xy1 example.org",
    "curl -u me:xy1 https://example.org",
    "Authorization: Bearer xy1",
    "--password xy1",
    "'--api-key' 'abcdxy1x'",
    "https://me:a/xy1@c@proxy:3128/",
]
HARMLESS = [
    "token: 512 tokens/s",
    "tokens: 1.5e9, tokens_per_second=51234.5, max_tokens=40960000, --max-tokens 4096",
    "password-protected",
    "Support for password authentication was removed",
    "No API key configured; run wandb login first, or wandb login --relogin",
    "learning_rate=0.1",
    "commit 201e683c64050cacc5150f059582746b27e2ce54",
    "image_sha256=" + "0123456789abcdef" * 4,
    "--tokenizer-type GPT2BPETokenizer --tokenizer-model meta-llama/Llama-3.1-8B",
    "eos_token='</s>' pad_token=None --pad-token '<pad>' \"bos_token\": \"<|begin_of_text|>\"",
    "invalid token: unexpected end of file",
    "https://pypi.org/simple http://localhost:8080/user@x ssh://git@github.com/x/y.git",
    "git@github.com:x/y.git me@example.org pip install x@https://example.org/x.whl",
    "docker://nvcr.io/nvidia/pytorch:25.01@sha256:0123456789abcdef",
    "WANDB_API_KEY and HF_TOKEN are not set",
    "TOKENIZERS_PARALLELISM=false",
    "global-batch-size-and-micro-batch-size, disk-or-memory-with-large-pages",
    "token = get_token()",
    "srun --user 1000:1000 --task-disk-mask 1",
]


TEXTS = [*FORMS, *HARMLESS]
WITH = [f"file-{number}" for number, text in enumerate(TEXTS) if text in FORMS]
WITHOUT = [f"file-{number}" for number, text in enumerate(TEXTS) if text in HARMLESS]


def secret_of(text):
    return next((each for each in (V, HEX, "xy1", "horse") if each in text), text)
