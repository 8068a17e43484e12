"""What the examples' requests ask: questions of readers, as bytes, under one instruction."""

from __future__ import annotations

INSTRUCTION = "You are the librarian of a small harbor town. Answer in one sentence, and name the book.\n"

QUESTIONS = (
    "Who says 'Call me Ishmael', and where does he sail from?",
    "Which story begins with 'It was the best of times, it was the worst of times'?",
    "What does Alice follow down the hole, and what does it carry in its waistcoat pocket?",
    "Who is locked up in the Chateau d'If?",
    "How long was Robinson Crusoe alone?",
    "What did Victor Frankenstein study at Ingolstadt?",
    "'It is a truth universally acknowledged' - how does that sentence go on?",
    "Around the world in how many days, and who made the bet?",
    "What do the musketeers say to one another?",
    "Which letter does Hester Prynne wear, and of what color?",
    "Who painted the fence for Tom Sawyer?",
    "At what depth does the Nautilus travel, and who is its captain?",
    "What did Long John Silver keep on his shoulder?",
    "How does the Odyssey begin?",
    "Why does Bartleby not copy the letter?",
    "Which windmills did Don Quixote take for giants?",
)


def prompts(count: int) -> list[list[int]]:
    """The questions under their instruction, as bytes."""
    return [list((INSTRUCTION + QUESTIONS[i % len(QUESTIONS)]).encode()) for i in range(count)]
