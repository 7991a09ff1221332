"""The chat template of Gemma, for files that leave it out."""

# Turns of user and model; a system message is put before the first user's.
GEMMA_TEMPLATE = (
    "{{ bos_token }}"
    "{% set start = namespace(text='') %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}"
    "{% set start.text = message['content'] + '\n\n' %}"
    "{% else %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + start.text + (message['content'] | trim) }}"
    "{{ '<end_of_turn>\n' }}"
    "{% set start.text = '' %}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
